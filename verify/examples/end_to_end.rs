//! Packing and verifying against reading and hashing alone: `end_to_end FOLDER OUT [ROUNDS]`.
//!
//! The anchor reads the source's tensors in pieces of 1 MiB and hashes each with the sha2 crate, one stream
//! a thread. It, packing and verifying take turns in one process, and what is printed are ratios: the
//! anchor's time over ours, medians of the rounds. A ratio of 0.5 says that we take twice as long.

#![allow(clippy::print_stdout, clippy::cast_precision_loss, reason = "a program that prints figures")]

use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use glyd_format::manifest::Source;
use glyd_format::weights::{Location, Weights};
use glyd_format::{Checkpoint, Layout};
use rustix::time::{ClockId, clock_gettime};
use sha2::Digest as _;

const PIECE_BYTES: u64 = 1 << 20;

/// Time that something took: of all processors together, and on the wall.
#[derive(Clone, Copy)]
struct Took {
    cpu: Duration,
    wall: Duration,
}

/// What takes turns.
struct Job<'a> {
    name: String,
    threads: usize,
    /// The folder that it makes anew.
    writes: Option<&'a Path>,
    run: Box<dyn Fn() -> Result<(), Box<dyn Error>> + 'a>,
    took: Vec<Took>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, out, rounds @ ..] = arguments.as_slice() else {
        return Err("usage: end_to_end FOLDER OUT [ROUNDS]".into());
    };
    let rounds: usize = rounds.first().map_or(Ok(5), |rounds| rounds.parse())?;
    let checkpoint = Checkpoint::open(Path::new(source))?;
    let outs = Layout::ALL.map(|layout| (layout, Path::new(out).join(layout.name())));

    let mut jobs = Vec::new();
    for threads in [1, 2] {
        let weights = checkpoint.weights();
        let run = Box::new(move || read_and_hash(weights, threads));
        jobs.push(Job { name: "anchor".to_owned(), threads, writes: None, run, took: Vec::new() });
        for (layout, out) in &outs {
            let checkpoint = &checkpoint;
            let pack = move || Ok(pack(checkpoint, out, *layout, threads)?);
            let name = format!("pack {layout}");
            jobs.push(Job { name, threads, writes: Some(out), run: Box::new(pack), took: Vec::new() });
            let verify = move || Ok(verify(out, threads)?);
            let name = format!("verify {layout}");
            jobs.push(Job { name, threads, writes: None, run: Box::new(verify), took: Vec::new() });
        }
    }
    for _ in 0..rounds {
        for job in &mut jobs {
            if let Some(out) = job.writes {
                // Not measured: what is replaced takes time to free.
                let _ = std::fs::remove_dir_all(out);
            }
            job.took.push(took(&job.run)?);
        }
    }
    report(&jobs, &checkpoint);
    Ok(())
}

fn took(run: impl Fn() -> Result<(), Box<dyn Error>>) -> Result<Took, Box<dyn Error>> {
    let cpu = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    };
    let (before, start) = (cpu(), Instant::now());
    run()?;
    Ok(Took { cpu: cpu() - before, wall: start.elapsed() })
}

/// The anchor.
fn read_and_hash(weights: &Weights, threads: usize) -> Result<(), Box<dyn Error>> {
    let mut tensors: Vec<Location> = weights.names().filter_map(|name| weights.find(name)).collect();
    tensors.sort_by_key(|&at| std::cmp::Reverse(weights.tensor(at).bytes()));
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let work = || -> Result<(), glyd_format::Error> {
            let mut piece = Vec::new();
            while let Some(&at) = tensors.get(next.fetch_add(1, Ordering::Relaxed)) {
                let bytes = weights.tensor(at).bytes();
                let mut hasher = sha2::Sha256::new();
                for offset in (0..bytes).step_by(1 << 20) {
                    piece.resize(usize::try_from(PIECE_BYTES.min(bytes - offset)).unwrap_or(0), 0);
                    weights.read_at(at, &mut piece, offset)?;
                    hasher.update(&piece);
                }
                std::hint::black_box(hasher.finalize());
            }
            Ok(())
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(())
    })
}

fn pack(checkpoint: &Checkpoint, out: &Path, layout: Layout, threads: usize) -> glyd_packers::Result<()> {
    let options = glyd_packers::Options {
        layout,
        merge: true,
        cast: false,
        shard_bytes: glyd_packers::SHARD_BYTES,
        threads: Some(threads),
        source: Source { repo: b"measured".to_vec(), revision: None },
    };
    glyd_packers::pack(checkpoint, out, &options, &()).map(|_| ())
}

fn verify(out: &Path, threads: usize) -> Result<(), glyd_verify::Error> {
    let report = glyd_verify::verify(out, &glyd_verify::Options { threads: Some(threads) }, &())?;
    assert_eq!(report.verdict(), glyd_verify::Verdict::Good);
    Ok(())
}

fn report(jobs: &[Job<'_>], checkpoint: &Checkpoint) {
    let weights = checkpoint.weights();
    let bytes: u64 =
        weights.names().filter_map(|name| weights.find(name)).map(|at| weights.tensor(at).bytes()).sum();
    println!(
        "{:.2} GB of tensors; the anchor's time over ours, medians of {} rounds",
        bytes as f64 / 1e9,
        jobs[0].took.len()
    );
    println!("{:16} {:>7} {:>10} {:>10} {:>10} {:>10}", "", "threads", "CPU", "wall", "GB/CPU-s", "GB/s");
    for job in jobs {
        let anchor = jobs.iter().find(|anchor| anchor.name == "anchor" && anchor.threads == job.threads);
        let ratio =
            |time: fn(&Took) -> f64| anchor.map_or(0.0, |anchor| median(anchor, time) / median(job, time));
        let cpu = |took: &Took| took.cpu.as_secs_f64();
        let wall = |took: &Took| took.wall.as_secs_f64();
        println!(
            "{:16} {:>7} {:>10.2} {:>10.2} {:>10.2} {:>10.2}",
            job.name,
            job.threads,
            ratio(cpu),
            ratio(wall),
            bytes as f64 / 1e9 / median(job, cpu),
            bytes as f64 / 1e9 / median(job, wall),
        );
    }
}

fn median(job: &Job<'_>, time: impl Fn(&Took) -> f64) -> f64 {
    let mut times: Vec<f64> = job.took.iter().map(time).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
