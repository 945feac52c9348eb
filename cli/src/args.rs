//! The command line: its types and its help, nothing else.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use glyd_format::Layout;

/// Lossless packing of bf16 model checkpoints.
///
/// Packs a checkpoint's matrices into about two thirds of their size (layout mma) or three quarters
/// (mma12), in the order a GPU's tensor cores take the weights, and not one bit is lost.
#[derive(Debug, Parser)]
#[command(name = "glyd", version, after_help = STATUS, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const STATUS: &str = "\
Exit status:
    0  done, and the answer is good
    1  looked, and the answer is no: damage found, nothing to pack, does not fit
    2  could not do it: usage, a missing or unreadable source, tensors missing from it, disk, network
  130  interrupted";

/// What is done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Pack a checkpoint.
    Pack(Pack),
    /// Verify a packed checkpoint: every tensor decoded and hashed again.
    Verify(Verify),
    /// Show what is in a packed checkpoint, or what packing another would do.
    Inspect(Inspect),
    /// Tell whether a model fits a GPU, in bf16 and packed, and show the sum.
    Fit(Fit),
    /// List the model types that are known, or explain one: what is packed, merged, stacked.
    Families(Families),
    /// Write a packed checkpoint's model card, README.md, which takes in the source's.
    Card(Card),
    /// Publish a packed checkpoint on the Hub: verified first, and only what changed is uploaded.
    Publish(Publish),
    /// Make a small model, pack it, verify it, and catch a flipped bit: no model, no network.
    Demo(Demo),
}

/// How a command speaks.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Voice {
    /// Print one JSON document on stdout; docs/json.md has its fields.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print errors only; of verify, what is damaged too.
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

/// How a model of the Hub is had.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FromHub {
    /// Of a model of the Hub: the branch, tag or commit [default: main].
    #[arg(long, value_name = "REV")]
    pub(crate) revision: Option<String>,
    /// Ask the Hub nothing: take what is in the Hugging Face cache, as with `HF_HUB_OFFLINE=1`.
    #[arg(long)]
    pub(crate) no_download: bool,
}

#[derive(Debug, Args)]
#[command(after_help = STATUS)]
pub(crate) struct Pack {
    /// The model: a folder with config.json and safetensors files, or a model of the Hub (owner/name).
    pub(crate) model: PathBuf,
    /// The folder to write: new, empty, or with a glyd checkpoint to replace.
    pub(crate) out: PathBuf,
    /// How matrices are packed: mma (about 10.8 bits a weight) or mma12 (12 bits, decodes faster).
    #[arg(long, default_value = "mma")]
    pub(crate) layout: Layout,
    /// Pack q, k, v and gate, up on their own, not as one matrix each.
    #[arg(long)]
    pub(crate) no_merge: bool,
    /// Cast every float tensor to bf16 first (to the nearest, ties to even): this loses bits.
    #[arg(long)]
    pub(crate) cast: bool,
    /// Begin a new file once one holds this much: bytes, or with a unit (5GB, 500MB, 2GiB).
    #[arg(long, default_value = "5GB", value_parser = parse_bytes, value_name = "SIZE")]
    pub(crate) shard_size: u64,
    /// Threads [default: as many as the machine runs at once].
    #[arg(long, value_parser = parse_threads, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Say what would be done, and write nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Pack a model of the Hub while it is fetched, and keep none of its weights: on disk are the output and the
    /// shards that are being packed.
    #[arg(long, conflicts_with_all = ["check_source", "no_download"])]
    pub(crate) stream: bool,
    /// Hash the source's files first, where a cache names them by their hashes.
    #[arg(long)]
    pub(crate) check_source: bool,
    #[command(flatten)]
    pub(crate) hub: FromHub,
    #[command(flatten)]
    pub(crate) voice: Voice,
}

#[derive(Debug, Args)]
#[command(after_help = STATUS)]
pub(crate) struct Verify {
    /// The packed checkpoint: its folder, or a model of the Hub (owner/name).
    pub(crate) dir: PathBuf,
    #[command(flatten)]
    pub(crate) hub: FromHub,
    /// Threads [default: as many as the machine runs at once].
    #[arg(long, value_parser = parse_threads, value_name = "N")]
    pub(crate) threads: Option<usize>,
    #[command(flatten)]
    pub(crate) voice: Voice,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = STATUS)]
pub(crate) struct Inspect {
    /// The checkpoint, packed or not: its folder, or a model of the Hub (owner/name).
    pub(crate) dir: PathBuf,
    #[command(flatten)]
    pub(crate) hub: FromHub,
    /// Print one JSON document on stdout; docs/json.md has its fields.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = STATUS)]
pub(crate) struct Fit {
    /// The model: a folder, packed or not, or a model of the Hub (owner/name).
    pub(crate) model: String,
    /// The card: a name ("RTX 4090", L40S), a size (48GB is what a card sold as that reports; 48GiB,
    /// 49140MiB, bytes), several ("2x RTX 4090"), auto for this machine's own, or all that are known.
    #[arg(long, value_name = "CARD", allow_hyphen_values = true)]
    pub(crate) gpu: Option<String>,
    /// Tokens of each sequence [default: 8192, or the model's own where that is less].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) context: Option<u64>,
    /// Sequences at once.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub(crate) batch: u64,
    /// Cards that share the model [default: as many as --gpu names].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 16))]
    pub(crate) tensor_parallel: Option<u64>,
    /// What keys and values are stored as.
    #[arg(long, value_enum, default_value_t = FitCache::Bf16)]
    pub(crate) kv_dtype: FitCache,
    /// What the runtime takes on each card beside weights and cache, in GiB: an assumption.
    #[arg(long, value_name = "GIB", default_value = "1.5", value_parser = parse_gib)]
    pub(crate) runtime: u64,
    #[command(flatten)]
    pub(crate) hub: FromHub,
    /// Count the weights of a folder, and write nothing: packed sizes are exact then.
    #[arg(long)]
    pub(crate) measure: bool,
    /// Show every term and where it is from.
    #[arg(long)]
    pub(crate) why: bool,
    #[command(flatten)]
    pub(crate) voice: Voice,
}

/// What keys and values are stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FitCache {
    /// Two bytes.
    Bf16,
    /// One byte.
    Fp8,
}

#[derive(Debug, Args)]
#[command(after_help = STATUS)]
pub(crate) struct Families {
    /// A model type, as `model_type` of config.json has it.
    pub(crate) model_type: Option<String>,
    /// Print one JSON document on stdout; docs/json.md has its fields.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = STATUS)]
pub(crate) struct Card {
    /// The folder of a packed checkpoint.
    pub(crate) dir: PathBuf,
    /// The model it was packed from, on the Hub (owner/name) [default: as glyd.json has it].
    #[arg(long, value_name = "REPO")]
    pub(crate) base_model: Option<String>,
    #[command(flatten)]
    pub(crate) voice: Voice,
}

#[derive(Debug, Args)]
#[command(after_help = STATUS)]
pub(crate) struct Publish {
    /// The folder of a packed checkpoint.
    pub(crate) dir: PathBuf,
    /// The model on the Hub to publish it as (owner/name), which is made where it is not there.
    pub(crate) repo: String,
    /// Make it a private one, where it is made.
    #[arg(long)]
    pub(crate) private: bool,
    /// The branch, which is made where it is not there [default: main].
    #[arg(long, value_name = "BRANCH")]
    pub(crate) revision: Option<String>,
    /// Threads that verify [default: as many as the machine runs at once].
    #[arg(long, value_parser = parse_threads, value_name = "N")]
    pub(crate) threads: Option<usize>,
    #[command(flatten)]
    pub(crate) voice: Voice,
}

#[derive(Debug, Args)]
#[command(after_help = STATUS)]
pub(crate) struct Demo {
    /// Keep the model and its packed checkpoints in this new or empty folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
}

/// A size: a number, whole or with a decimal point, and a unit of 1000s (kB, MB, GB, TB) or of 1024s
/// (KiB, MiB, GiB, TiB); bytes where there is none.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 10] = [
        ("", 1),
        ("b", 1),
        ("kb", 1_000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("tb", 1_000_000_000_000),
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
        ("tib", 1 << 40),
    ];
    let wrong = || "expected bytes, or a number with a unit: 5000000000, 5GB, 500MB, 2GiB".to_owned();
    let split = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let (_, unit) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{part}");
    let scale = 10_u128.checked_pow(u32::try_from(part.len()).map_err(|_| wrong())?).ok_or_else(wrong)?;
    let scaled = digits.parse::<u128>().ok().and_then(|number| number.checked_mul(u128::from(*unit)));
    let bytes = scaled.and_then(|scaled| u64::try_from(scaled / scale).ok()).ok_or_else(wrong)?;
    if bytes == 0 { Err("expected more than nothing".to_owned()) } else { Ok(bytes) }
}

fn parse_gib(text: &str) -> Result<u64, String> {
    let wrong = || "expected GiB, as 1.5 or 0".to_owned();
    if text.parse() == Ok(0.0) {
        return Ok(0);
    }
    let digits = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if digits { parse_bytes(&format!("{text}GiB")).map_err(|_| wrong()) } else { Err(wrong()) }
}

fn parse_threads(text: &str) -> Result<usize, String> {
    const THREADS_MAX: usize = 4096;
    let threads = text.parse().ok().filter(|threads| (1..=THREADS_MAX).contains(threads));
    threads.ok_or_else(|| format!("expected 1 to {THREADS_MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn the_workflows_commands_are_commands() {
        let pages = [
            include_str!("../../docs/publishing/github.yml"),
            include_str!("../../docs/publishing/gitlab.yml"),
        ];
        for page in pages {
            let lines = page
                .lines()
                .filter_map(|line| line.split_once("glyd ").filter(|_| !line.contains("install")));
            let lines: Vec<&str> = lines
                .filter(|(before, _)| {
                    before.trim_end_matches(['-', ' ', '\t']).is_empty() || before.ends_with("run: ")
                })
                .map(|(_, line)| line)
                .collect();
            assert_eq!(lines.len(), 4, "pack, verify, card and publish");
            for line in lines {
                let words = line
                    .split(" | ")
                    .next()
                    .unwrap_or_default()
                    .replace("$LAYOUT", "mma")
                    .replace("$TARGET", "a/b");
                let words = words.split(' ').map(|word| word.trim_matches('"'));
                Cli::try_parse_from(std::iter::once("glyd").chain(words)).unwrap();
            }
        }
    }

    #[test]
    fn a_runtime_is_in_gib() {
        assert_eq!(parse_gib("1.5"), Ok(3 << 29));
        assert_eq!(parse_gib("0"), Ok(0));
        for text in ["", "-1", "inf", "NaN", "1e9", "2GiB", "99999999999999"] {
            assert!(parse_gib(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_units() {
        let good = [
            ("1", 1),
            ("5GB", 5_000_000_000),
            ("5 gb", 5_000_000_000),
            ("2GiB", 2 << 30),
            ("1.5kB", 1500),
            ("0.5KiB", 512),
        ];
        for (text, bytes) in good {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "GB", "0", "0GB", "-1", "1XB", "1e9", "99999999999TB", "1.2.3", "."] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
