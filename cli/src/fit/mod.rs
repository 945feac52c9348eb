//! `glyd fit`: the model and the card are found here, the sums are `glyd_gpu::fit`'s.

mod gpus;
mod show;
mod source;

use glyd_gpu::fit::{
    CacheDtype, Gpu, Model, Needs, Request, TIGHT_PERCENT, Weights, cards, needs, parallel_note, parse_gpu,
    weigh,
};

use crate::args::{Fit, FitCache};
use crate::output::{self, Failure, Status};
use source::Source;

/// What a model can be kept as, and its name in the answer.
const KEPT: [&str; 3] = ["bf16", "mma", "mma12"];

/// How a model's bytes and a card go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Fits,
    /// It fits, with little to spare.
    Tight,
    No,
}

impl Verdict {
    fn of(needs_bytes: u64, gpu: &Gpu) -> Verdict {
        let card = gpu.usable_bytes();
        match card.checked_sub(needs_bytes) {
            None => Verdict::No,
            Some(spare) if u128::from(spare) * 100 < u128::from(card) * u128::from(TIGHT_PERCENT) => {
                Verdict::Tight
            }
            Some(_) => Verdict::Fits,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Verdict::Fits => "fits",
            Verdict::Tight => "tight",
            Verdict::No => "no",
        }
    }
}

/// One way to keep the model, on one card or its like.
struct Row {
    kept: &'static str,
    weights_bytes: u64,
    needs_bytes: u64,
}

/// A row against a card.
struct Judged {
    verdict: Verdict,
    /// None where every context fits.
    max_context: Option<u64>,
}

/// All that is said.
struct Answer<'a> {
    args: &'a Fit,
    source: Source,
    weights: Weights,
    needs: Needs,
    tensor_parallel: u64,
    rows: Vec<Row>,
    /// The card that was named.
    gpu: Option<Gpu>,
    /// Every card that is known, where all were asked for.
    table: Vec<Gpu>,
    assumptions: Vec<String>,
}

pub(crate) fn run(args: &Fit) -> Result<Status, Failure> {
    let (gpu, tensor_parallel) = card(args)?;
    let source = Source::of(args)?;
    let model = Model { config: &source.config, inventory: &source.inventory, packing: &source.packing };
    let weights = weigh(&model, &mut |a, b, stated| source.tied(a, b, stated))?;
    let bytes = [weights.bf16, weights.mma, weights.mma12].map(|bytes| bytes.on_each(tensor_parallel));
    let needs = needs(&source.config, &request(args, tensor_parallel)).inspect_err(|_| {
        let [bf16, mma, mma12] = bytes;
        output::say(&format!(
            "glyd: note: the weights alone take, on each card, {bf16} bytes in bf16, {mma} in mma, {mma12} in mma12"
        ));
    })?;
    let rows = KEPT.iter().zip(bytes).map(|(kept, weights_bytes)| Row {
        kept,
        weights_bytes,
        needs_bytes: needs.total(weights_bytes),
    });
    let rows = rows.collect();
    let all = args.gpu.as_deref().is_some_and(|gpu| gpu.eq_ignore_ascii_case("all"));
    let table = if all { cards().iter().map(Gpu::of).collect() } else { Vec::new() };
    let mut answer =
        Answer { args, source, weights, needs, tensor_parallel, rows, gpu, table, assumptions: Vec::new() };
    answer.assumptions = answer.assumed()?;
    if args.voice.json {
        output::print_json(&show::document(&answer))?;
    } else if !args.voice.quiet {
        output::print_lines(&show::lines(&answer))?;
    }
    let status = answer.status();
    // The program ends here, and the system takes its memory back sooner than it is given back by name.
    std::mem::forget(answer);
    Ok(status)
}

/// The card that was asked for, and over how many the model is spread.
fn card(args: &Fit) -> Result<(Option<Gpu>, u64), Failure> {
    let asked = args.tensor_parallel;
    let gpu = match args.gpu.as_deref() {
        None => return Ok((None, asked.unwrap_or(1))),
        Some(all) if all.eq_ignore_ascii_case("all") => return Ok((None, asked.unwrap_or(1))),
        Some(auto) if auto.eq_ignore_ascii_case("auto") => gpus::own(asked.unwrap_or(1))?,
        Some(named) => parse_gpu(named).map_err(|problem| Failure::Usage(format!("--gpu {problem}")))?,
    };
    match asked {
        None => {
            let cards = gpu.count;
            Ok((Some(gpu), cards))
        }
        Some(cards) if gpu.count == 1 => Ok((Some(Gpu { count: cards, ..gpu }), cards)),
        Some(cards) if cards <= gpu.count => Ok((Some(gpu), cards)),
        Some(cards) => Err(Failure::Usage(format!(
            "--tensor-parallel {cards} asks for more cards than the {} of --gpu",
            gpu.count
        ))),
    }
}

fn request(args: &Fit, tensor_parallel: u64) -> Request {
    Request {
        context: args.context,
        batch: args.batch,
        tensor_parallel,
        cache: match args.kv_dtype {
            FitCache::Bf16 => CacheDtype::Bf16,
            FitCache::Fp8 => CacheDtype::Fp8,
        },
        runtime_bytes: args.runtime,
    }
}

impl Answer<'_> {
    fn judge(&self, row: &Row, gpu: &Gpu) -> Judged {
        Judged {
            verdict: Verdict::of(row.needs_bytes, gpu),
            max_context: self.needs.max_context(row.weights_bytes, gpu.usable_bytes()),
        }
    }

    fn fits(&self, gpu: &Gpu) -> bool {
        self.rows.iter().any(|row| self.judge(row, gpu).verdict != Verdict::No)
    }

    fn status(&self) -> Status {
        let mut asked = self.gpu.iter().chain(&self.table).peekable();
        if asked.peek().is_none() || asked.any(|gpu| self.fits(gpu)) { Status::Good } else { Status::No }
    }

    /// What the answer takes for granted, and what a user should know of it.
    fn assumed(&self) -> Result<Vec<String>, Failure> {
        let mut all = self.needs.assumed.clone();
        all.extend(self.weights.basis_note());
        all.extend(self.weights.notes.iter().cloned());
        all.extend(self.gpu.iter().flat_map(|gpu| gpu.notes.iter().cloned()));
        all.extend(parallel_note(&self.weights, self.tensor_parallel));
        all.push(format!(
            "runtime {} on each card, for activations, workspaces and the driver's part: --runtime says another",
            show::gib(self.args.runtime)
        ));
        let tight = |gpu| self.rows.iter().any(|row| self.judge(row, gpu).verdict == Verdict::Tight);
        if self.gpu.as_ref().is_some_and(tight) {
            all.push(format!(
                "tight is less than {TIGHT_PERCENT} % of the card to spare: drivers keep 0.3 to 1.1 GiB of what nvidia-smi reports"
            ));
        }
        if let Some(gpu) = self.gpu.as_ref().filter(|_| self.tensor_parallel > 1) {
            let alone = needs(&self.source.config, &request(self.args, 1))?;
            let least =
                [self.weights.bf16, self.weights.mma, self.weights.mma12].map(|bytes| bytes.on_each(1));
            let bytes = alone.total(least.into_iter().min().unwrap_or(0));
            let verdict = Verdict::of(bytes, gpu).name();
            all.push(format!("on one card alone it needs {} at least: {verdict}", show::gib(bytes)));
        }
        Ok(all)
    }
}
