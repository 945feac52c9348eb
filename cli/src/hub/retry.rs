//! When a request is made again, and how long is waited before.

use std::time::{Duration, Instant};

use ureq::http::HeaderMap;

use super::Stop;

/// Tries of one request, or of one stretch of a file in which no byte arrives.
pub(crate) const TRIES_MAX: u32 = 5;
/// The first pause; each is twice the one before.
const PAUSE: Duration = Duration::from_millis(500);
/// What a server may ask to be waited for: the Hub counts in windows of five minutes.
const WAIT_MAX: Duration = Duration::from_secs(660);

/// What is waited before try `tries + 1`, where the server says nothing.
pub(crate) fn pause(tries: u32) -> Duration {
    PAUSE * 2_u32.pow(tries.saturating_sub(1).min(6))
}

/// What a server asks to be waited for: `Retry-After` in seconds, or until its window ends.
pub(crate) fn asked(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let after = text("retry-after").and_then(|text| text.trim().parse::<u64>().ok());
    let window = || {
        let limit = text("ratelimit")?;
        let part = |name: &str| limit.split(';').find_map(|part| part.trim().strip_prefix(name));
        let seconds = part("t=")?.trim().parse::<u64>().ok()?;
        // Sent with every answer: it asks for patience only where nothing remains.
        (part("r=")?.trim() == "0").then(|| seconds.saturating_add(1))
    };
    after.or_else(window).map(Duration::from_secs)
}

/// Whether a wait is one that a program may make.
pub(crate) fn bearable(wait: Duration) -> bool {
    wait <= WAIT_MAX
}

/// Whether a server that answers so may answer otherwise soon.
pub(crate) fn may_pass(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504 | 520..=524)
}

/// Sleeps, unless the work is stopped; false where it is.
pub(crate) fn sleep(wait: Duration, stop: &Stop) -> bool {
    const SLICE: Duration = Duration::from_millis(50);
    let end = Instant::now() + wait;
    while !stop.asked() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(SLICE));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_server_s_word_is_taken() {
        let asked =
            |pairs: &[(&'static str, &'static str)]| asked(&headers(pairs)).map(|wait| wait.as_secs());
        assert_eq!(asked(&[("Retry-After", "2")]), Some(2));
        assert_eq!(asked(&[("RateLimit", "\"api\";r=0;t=55")]), Some(56));
        assert_eq!(asked(&[("RateLimit", "\"api\";r=3;t=55")]), None);
        assert_eq!(asked(&[("Retry-After", "Wed, 21 Oct 2026 07:28:00 GMT")]), None);
        assert!(bearable(Duration::from_secs(300)) && !bearable(Duration::from_secs(3600)));
    }

    #[test]
    fn pauses_grow_and_are_bounded() {
        let pauses: Vec<u128> = (1..TRIES_MAX).map(|tries| pause(tries).as_millis()).collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000]);
        assert_eq!(pause(u32::MAX), pause(7));
    }
}
