//! Cards: what each reports as its memory, and how one is named (`docs/fit.md`, cards).

/// Bytes in a MiB.
const MIB: u64 = 1 << 20;
/// Fewer bytes than this are no card's: a number without its unit.
const BYTES_MIN: u64 = 1 << 28;
/// More cards than this are not asked for.
const COUNT_MAX: u64 = 1 << 16;

/// A card that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Card {
    /// Its name.
    pub name: &'static str,
    /// The gigabytes that it is sold as.
    pub sold_gb: u64,
    /// The memory that nvidia-smi reports, in MiB.
    pub mib: u64,
}

const fn card(name: &'static str, sold_gb: u64, mib: u64) -> Card {
    Card { name, sold_gb, mib }
}

/// By size and name.
const CARDS: &[Card] = &[
    card("RTX 4060", 8, 8188),
    card("RTX 4070", 12, 12_282),
    card("RTX 4070 Ti", 12, 12_282),
    card("RTX 4070 SUPER", 12, 12_282),
    card("RTX 5070", 12, 12_227),
    card("T4", 16, 15_360),
    card("RTX 5080", 16, 16_303),
    card("RTX 5070 Ti", 16, 16_303),
    card("RTX 5060 Ti", 16, 16_311),
    card("RTX 4080", 16, 16_376),
    card("RTX A4000", 16, 16_376),
    card("A10", 24, 23_028),
    card("A10G", 24, 23_028),
    card("L4", 24, 23_034),
    card("RTX PRO 4000", 24, 24_467),
    card("RTX 4090", 24, 24_564),
    card("RTX 3090", 24, 24_576),
    card("TITAN RTX", 24, 24_576),
    card("A30", 24, 24_576),
    card("RTX 5090", 32, 32_607),
    card("V100 32GB", 32, 32_768),
    card("A100 40GB", 40, 40_960),
    card("L40", 48, 46_068),
    card("L40S", 48, 46_068),
    card("A40", 48, 46_068),
    card("RTX PRO 5000", 48, 48_935),
    card("RTX A6000", 48, 49_140),
    card("RTX 6000 Ada", 48, 49_140),
    card("H100", 80, 81_559),
    card("H100 80GB", 80, 81_559),
    card("H100 PCIe", 80, 81_559),
    card("A100 80GB", 80, 81_920),
    card("RTX 6000D", 84, 85_651),
    card("H100 NVL", 94, 95_830),
    card("GH200", 96, 97_871),
    card("H20", 96, 97_871),
    card("RTX PRO 6000", 96, 97_887),
    card("H200", 141, 143_771),
    card("B200", 180, 183_359),
    card("GB200", 186, 189_471),
    card("MI300X", 192, 196_592),
    card("B300", 288, 275_040),
    card("GB300", 288, 284_208),
];

/// The cards whose memory is known, by size and name.
#[must_use]
pub fn cards() -> &'static [Card] {
    CARDS
}

/// What a size that cards are sold as means: the memory that such a card reports, in MiB.
const TIERS: [(u64, u64); 12] = [
    (8, 8188),
    (12, 12_282),
    (16, 16_376),
    (24, 24_564),
    (32, 32_607),
    (40, 40_960),
    (48, 49_140),
    (80, 81_559),
    (94, 95_830),
    (96, 97_887),
    (141, 143_771),
    (180, 183_359),
];

/// A card or several, as they were named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// The card's name.
    pub name: String,
    /// How many.
    pub count: u64,
    /// Bytes of memory of each; of unlike cards the smallest's.
    pub total_bytes: u64,
    /// Bytes of it that are free, where the machine was asked.
    pub free_bytes: Option<u64>,
    /// What a user should know of it.
    pub notes: Vec<String>,
}

impl Gpu {
    /// One card.
    #[must_use]
    pub fn of(card: &Card) -> Gpu {
        Gpu::sized(card.name, card.mib * MIB)
    }

    /// One card of this memory.
    #[must_use]
    pub fn sized(name: &str, total_bytes: u64) -> Gpu {
        Gpu { name: name.to_owned(), count: 1, total_bytes, free_bytes: None, notes: Vec::new() }
    }

    /// Bytes that a model may take of each.
    #[must_use]
    pub fn usable_bytes(&self) -> u64 {
        self.free_bytes.unwrap_or(self.total_bytes)
    }
}

/// What a card can be named as.
const FORMS: &str = "a card is named (`RTX 4090`, `L40S`, `H200`), or sized: `48GB` (what a card sold as that reports), `48GiB`, `49140MiB`, bytes; several are `2x RTX 4090` or `24GB,16GB`";

/// Reads a card's name or size, or several.
///
/// # Errors
/// What forms there are.
pub fn parse_gpu(text: &str) -> Result<Gpu, String> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let cards: Vec<Gpu> = parts.iter().map(|part| parse_some(part)).collect::<Result<_, _>>()?;
    let count = cards.iter().try_fold(0_u64, |all, gpu| all.checked_add(gpu.count)).unwrap_or(u64::MAX);
    let smallest = cards.iter().min_by_key(|gpu| gpu.total_bytes).cloned();
    let mut gpu = smallest.filter(|_| count <= COUNT_MAX).ok_or_else(|| wrong(text))?;
    if cards.len() > 1 {
        gpu.notes.push(format!("of unlike cards the smallest decides: {}", gpu.name));
        gpu.name = cards.iter().map(|card| card.name.as_str()).collect::<Vec<_>>().join(", ");
    }
    gpu.count = count;
    Ok(gpu)
}

fn wrong(text: &str) -> String {
    format!("`{text}` is no card that is known: {FORMS}")
}

/// `2x RTX 4090`, `RTX 4090`.
fn parse_some(text: &str) -> Result<Gpu, String> {
    let times = text.find(['x', 'X']).and_then(|at| {
        let count: u64 = text.get(..at)?.trim().parse().ok()?;
        Some((count, text.get(at + 1..)?.trim()))
    });
    let Some((count, one)) = times else { return parse_one(text) };
    if !(1..=COUNT_MAX).contains(&count) {
        return Err(wrong(text));
    }
    Ok(Gpu { count, ..parse_one(one)? })
}

fn parse_one(text: &str) -> Result<Gpu, String> {
    let plain = plain(text);
    if let Some(card) = cards().iter().find(|card| self::plain(card.name) == plain) {
        return Ok(Gpu::of(card));
    }
    if matches!(plain.as_str(), "a100" | "v100") {
        return Err(format!("`{text}` comes in two sizes: `A100 40GB`, `A100 80GB`, `V100 32GB`"));
    }
    parse_size(text).ok_or_else(|| wrong(text))
}

/// A name without what makers and people write differently.
fn plain(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    let words = lower.split(|char: char| !char.is_ascii_alphanumeric());
    let noise = [
        "nvidia",
        "geforce",
        "amd",
        "instinct",
        "tesla",
        "sxm",
        "sxm4",
        "sxm5",
        "sxm6",
        "generation",
        "blackwell",
    ];
    words.filter(|word| !noise.contains(word)).collect()
}

/// `48GB`, `48GiB`, `49140MiB`, bytes.
fn parse_size(text: &str) -> Option<Gpu> {
    let split = text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(split)?;
    let unit = unit.trim().to_ascii_lowercase();
    let bytes = match unit.as_str() {
        "gb" | "g" => match number.parse().ok().and_then(tier) {
            Some(gpu) => return Some(gpu),
            None => scaled(number, 1_000_000_000)?,
        },
        "gib" => scaled(number, 1 << 30)?,
        "mib" => scaled(number, MIB)?,
        "mb" => scaled(number, 1_000_000)?,
        "" | "b" | "bytes" => scaled(number, 1)?,
        _ => return None,
    };
    (bytes >= BYTES_MIN).then(|| Gpu::sized(text.trim(), bytes))
}

fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits: u128 = format!("{whole}{part}").parse().ok()?;
    let scale = 10_u128.checked_pow(u32::try_from(part.len()).ok()?)?;
    u64::try_from(digits.checked_mul(u128::from(unit))? / scale).ok()
}

/// A size that cards are sold as.
fn tier(gb: u64) -> Option<Gpu> {
    let &(_, mib) = TIERS.iter().find(|(sold, _)| *sold == gb)?;
    let mut gpu = Gpu::sized(&format!("{gb}GB"), mib * MIB);
    let less: Vec<String> = cards()
        .iter()
        .filter(|card| card.sold_gb == gb && card.mib < mib)
        .map(|card| format!("{} {} MiB", card.name, card.mib))
        .collect();
    gpu.notes.push(format!("{gb}GB is taken as {mib} MiB, what such a card reports"));
    if !less.is_empty() {
        gpu.notes.push(format!("sold as {gb} GB too, with less: {}", less.join(", ")));
    }
    Some(gpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_names_of_cards_are_told_apart() {
        let mib = |text: &str| parse_gpu(text).map(|gpu| gpu.total_bytes / MIB);
        for (text, expected) in [
            ("48GB", 49_140),
            ("48 gb", 49_140),
            ("48GiB", 49_152),
            ("49140MiB", 49_140),
            ("51527024640", 49_140),
            ("L40S", 46_068),
            ("rtx a6000", 49_140),
            ("NVIDIA GeForce RTX 4090", 24_564),
            ("h200", 143_771),
            ("1.5GiB", 1536),
        ] {
            assert_eq!(mib(text), Ok(expected), "{text}");
        }
        for text in
            ["48", "-5GB", "1e999GB", "", "GB", "RTX 9999", "0x24GB", "2x", "99999999999999999999GB", "4é"]
        {
            let error = parse_gpu(text).unwrap_err();
            assert!(error.contains("48GiB") && error.contains("2x RTX 4090"), "{text}: {error}");
        }
        assert!(parse_gpu("A100").unwrap_err().contains("A100 80GB"));
    }

    #[test]
    fn every_tier_is_what_its_cards_report() {
        for (gb, mib) in TIERS {
            let gpu = parse_gpu(&format!("{gb}GB")).unwrap();
            assert_eq!(gpu.total_bytes, mib * MIB);
            assert!(cards().iter().any(|card| card.sold_gb == gb && card.mib == mib), "{gb}");
        }
        let notes = parse_gpu("48GB").unwrap().notes.join("\n");
        assert!(notes.contains("L40S 46068 MiB"), "{notes}");
    }

    #[test]
    fn several_cards_are_counted_and_not_pooled() {
        let two = parse_gpu("2x RTX 4090").unwrap();
        assert_eq!((two.count, two.total_bytes), (2, 24_564 * MIB));
        let unlike = parse_gpu("24GB,16GB").unwrap();
        assert_eq!((unlike.count, unlike.total_bytes), (2, 16_376 * MIB));
        assert!(unlike.notes.iter().any(|note| note.contains("the smallest decides: 16GB")), "{unlike:?}");
        assert_eq!(parse_gpu("8x24GB").unwrap().count, 8);
    }
}
