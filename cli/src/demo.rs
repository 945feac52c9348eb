//! `glyd demo`: the whole of the program on a model made here.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use glyd_format::header::Header;
use glyd_format::manifest::Source;
use glyd_format::{Checkpoint, Dtype, Error, Layout, Packed};
use glyd_packers::{Options, SHARD_BYTES};
use glyd_verify::{Report, Verdict};

use crate::args::Demo;
use crate::meter::Meter;
use crate::output::{self, Failure, Status, bytes};
use crate::verify::finding_line;

const HIDDEN: u64 = 768;
const INTERMEDIATE: u64 = 2048;
const LAYERS: u64 = 4;
const VOCABULARY: u64 = 8000;
const CONFIG: &str = r#"{
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "hidden_size": 768,
  "intermediate_size": 2048,
  "num_hidden_layers": 4,
  "num_attention_heads": 12,
  "num_key_value_heads": 4,
  "vocab_size": 8000,
  "tie_word_embeddings": false,
  "torch_dtype": "bfloat16"
}
"#;

pub(crate) fn run(args: &Demo) -> Result<Status, Failure> {
    // Silent: it is there so that an interrupt takes the temporary folder away.
    let meter = Meter::new("demo", true);
    let temporary = tempfile::tempdir()
        .map_err(|source| io("make a temporary folder in", &std::env::temp_dir(), source))?;
    let dir = match &args.keep {
        Some(dir) => {
            new_folder(dir)?;
            dir.clone()
        }
        None => temporary.path().to_owned(),
    };
    let model = dir.join("model");
    let size = make(&model)?;
    output::print(&format!("made a model with weights like a trained one's: {} of bf16\n\n", bytes(size)))?;
    for layout in Layout::ALL {
        let out = dir.join(layout.name());
        let written = pack(&model, &out, layout, &meter)?;
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let percent = written as f64 * 100.0 / size as f64;
        output::print(&format!("packed, layout {layout}: {}, {percent:.1} % of bf16\n", bytes(written)))?;
        let report = verify(&out, &meter)?;
        output::print(&format!(
            "verified: {} ({} tensors decoded or read, each has its sha256)\n",
            report.verdict().name(),
            report.packed_tensors + report.plain_tensors
        ))?;
        if report.verdict() != Verdict::Good {
            return Ok(Status::No);
        }
        let caught = flip(&out, &meter)?;
        output::print(&caught)?;
    }
    if let Some(dir) = &args.keep {
        output::print(&format!("kept in `{}`: model, mma, mma12\n", dir.display()))?;
    }
    Ok(Status::Good)
}

fn io(action: &'static str, path: &Path, source: std::io::Error) -> Failure {
    Failure::Format(Error::Io { action, path: path.to_owned(), source })
}

/// Makes the folder `dir`, or takes it where it is empty.
fn new_folder(dir: &Path) -> Result<(), Failure> {
    fs::create_dir_all(dir).map_err(|source| io("make", dir, source))?;
    let mut entries = fs::read_dir(dir).map_err(|source| io("list", dir, source))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(Failure::Usage(format!(
            "`{}` is not empty: --keep takes a new or empty folder",
            dir.display()
        ))),
    }
}

fn pack(model: &Path, out: &Path, layout: Layout, meter: &Meter) -> Result<u64, Failure> {
    let options = Options {
        layout,
        merge: true,
        cast: false,
        shard_bytes: SHARD_BYTES,
        threads: None,
        source: Source { repo: b"demo".to_vec(), revision: None },
    };
    let summary = glyd_packers::pack(&Checkpoint::open(model)?, out, &options, meter)?;
    Ok(summary.bytes.written.unwrap_or(0))
}

fn verify(dir: &Path, meter: &Meter) -> Result<Report, Failure> {
    Ok(glyd_verify::verify(dir, &glyd_verify::Options::default(), meter)?)
}

/// Flips one bit of a packed matrix, shows what `verify` finds, and flips it back.
fn flip(dir: &Path, meter: &Meter) -> Result<String, Failure> {
    let path = dir.join(glyd_format::packed::SINGLE_NAME);
    let at = Packed::open(dir)?.packed.and_then(|packed| {
        let (name, entry) = packed.manifest().packs.first()?;
        let data = packed.buffers(name, entry)?.data;
        let tensor = packed.weights().tensor(data);
        Some(packed.weights().file(data).header.data_offset + tensor.begin + tensor.bytes() / 2)
    });
    let at = at.unwrap_or(0);
    flip_bit(&path, at).map_err(|source| io("flip a bit of", &path, source))?;
    let report = verify(dir, meter)?;
    flip_bit(&path, at).map_err(|source| io("flip a bit of", &path, source))?;
    let found: String =
        report.findings.iter().map(|finding| format!("  {}\n", finding_line(finding))).collect();
    let verdict = report.verdict().name();
    Ok(format!("one bit flipped at byte {at}: verified: {verdict}\n{found}and flipped back\n\n"))
}

fn flip_bit(path: &Path, at: u64) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    let mut file = fs::File::options().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    file.seek(SeekFrom::Start(at))?;
    file.write_all(&[byte[0] ^ 0x10])
}

/// Makes the model in the folder `dir`; returns the bytes of its tensors.
fn make(dir: &Path) -> Result<u64, Failure> {
    fs::create_dir(dir).map_err(|source| io("make", dir, source))?;
    let write = |name: &str, bytes: &[u8]| -> Result<PathBuf, Failure> {
        let path = dir.join(name);
        fs::write(&path, bytes).map_err(|source| io("write", &path, source))?;
        Ok(path)
    };
    write("config.json", CONFIG.as_bytes())?;
    let tensors = tensors().into_iter().map(|(name, shape)| (name, Dtype::BF16, shape)).collect();
    let Some(header) = Header::arrange(tensors) else { return Ok(0) };
    let mut bytes = header.to_bytes();
    for (seed, tensor) in (0..).zip(&header.tensors) {
        let fan_in = tensor.shape.get(1).copied();
        bytes.extend(weights(seed, tensor.bytes() / 2, fan_in));
    }
    write("model.safetensors", &bytes)?;
    Ok(header.data_bytes())
}

fn tensors() -> Vec<(String, Vec<u64>)> {
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
        ("lm_head.weight".to_owned(), vec![VOCABULARY, HIDDEN]),
    ];
    let linears = [
        ("self_attn.q_proj", HIDDEN, HIDDEN),
        ("self_attn.k_proj", HIDDEN / 3, HIDDEN),
        ("self_attn.v_proj", HIDDEN / 3, HIDDEN),
        ("self_attn.o_proj", HIDDEN, HIDDEN),
        ("mlp.gate_proj", INTERMEDIATE, HIDDEN),
        ("mlp.up_proj", INTERMEDIATE, HIDDEN),
        ("mlp.down_proj", HIDDEN, INTERMEDIATE),
    ];
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        tensors.extend(linears.map(|(linear, rows, columns)| (name(linear), vec![rows, columns])));
        tensors
            .extend(["input_layernorm", "post_attention_layernorm"].map(|norm| (name(norm), vec![HIDDEN])));
    }
    tensors
}

/// bf16 weights: of a matrix, sums of uniform numbers, as good as normal ones, as wide as training
/// leaves them; of a norm, near 1. Made with integers and exact steps, the same everywhere.
fn weights(seed: u64, count: u64, fan_in: Option<u64>) -> impl Iterator<Item = u8> {
    (0..count).flat_map(move |at| {
        let random = mix((seed << 40).wrapping_add(at));
        let quarter = |part: u32| {
            i32::from(u16::from_le_bytes([
                (random >> (16 * part)).to_le_bytes()[0],
                (random >> (16 * part)).to_le_bytes()[1],
            ]))
        };
        // Of deviation 37837: four uniform numbers of 16 bits.
        let sum = quarter(0) + quarter(1) + quarter(2) + quarter(3) - 131_070;
        #[expect(clippy::cast_precision_loss, reason = "18 bits fit a float's 24")]
        let number = match fan_in {
            Some(fan_in) => sum as f32 / 37_837.0 / (fan_in as f32).sqrt(),
            None => 1.0 + sum as f32 / 378_370.0,
        };
        let [_, _, low, high] = number.to_le_bytes();
        [low, high]
    })
}

/// A number's bits mixed: the output function of splitmix64.
fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
