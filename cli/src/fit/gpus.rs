//! The machine's own GPUs, as nvidia-smi tells of them.

use std::process::Command;

use glyd_gpu::fit::Gpu;

use crate::output::Failure;

const MIB: u64 = 1 << 20;

/// The `cards` GPUs of this machine with the most free memory, as one answer: the one with the least
/// decides.
pub(super) fn own(cards: u64) -> Result<Gpu, Failure> {
    let mut arguments = Command::new("nvidia-smi");
    arguments.args(["--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]);
    let absent = |why: String| {
        Failure::Usage(format!(
            "--gpu auto asks nvidia-smi for this machine's GPUs, and {why}: name a card, as `--gpu 48GB`"
        ))
    };
    let output = arguments.output().map_err(|error| absent(format!("it does not run ({error})")))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(absent("it finds none".to_owned()));
    }
    let mut found: Vec<Gpu> = text.lines().filter_map(gpu).collect();
    found.sort_by_key(|gpu| std::cmp::Reverse(gpu.free_bytes));
    let there = found.len() as u64;
    let wanted = usize::try_from(cards).unwrap_or(usize::MAX);
    let Some(least) = found.into_iter().nth(wanted.saturating_sub(1)) else {
        return Err(absent(format!("it tells of {there}, where --tensor-parallel asks for {cards}")));
    };
    let free = least.usable_bytes();
    let note = format!(
        "{} has {free} of {} bytes free: judged by what is free; {there} GPUs here",
        least.name, least.total_bytes
    );
    Ok(Gpu { count: cards, notes: vec![note], ..least })
}

/// `NVIDIA L4, 23034, 22500`: a name, and MiB in all and free.
fn gpu(line: &str) -> Option<Gpu> {
    let mut parts = line.rsplitn(3, ',').map(str::trim);
    let mut mib = || parts.next()?.parse::<u64>().ok()?.checked_mul(MIB);
    let (free, total) = (mib()?, mib()?);
    Some(Gpu { free_bytes: Some(free), ..Gpu::sized(parts.next()?, total) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_nvidia_smi_is_read() {
        let card = gpu("NVIDIA GeForce RTX 4090, 24564, 4084").unwrap();
        assert_eq!((card.name.as_str(), card.total_bytes / MIB), ("NVIDIA GeForce RTX 4090", 24_564));
        assert_eq!(card.usable_bytes() / MIB, 4084);
        // What has no memory of its own says so in words.
        assert_eq!(gpu("NVIDIA GB10, [N/A], [N/A]"), None);
        assert_eq!(gpu(""), None);
    }
}
