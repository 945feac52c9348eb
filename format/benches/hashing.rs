//! Streams hashed at once on a thread, against one: `cargo bench -p glyd-format --bench hashing`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use glyd_format::Hasher;

/// A piece: sixteen of them stay in a core's own cache.
const STREAM_BYTES: usize = 1 << 16;
/// Numbers of streams: the last ones are about those from which AVX-512's sixteen lanes are worth it.
const COUNTS: [usize; 8] = [1, 2, 3, 4, 5, 8, 12, 16];

fn hashing(criterion: &mut Criterion) {
    let bytes: Vec<u8> = (0..16 * STREAM_BYTES).map(|at| (at % 251).to_le_bytes()[0]).collect();
    let mut group = criterion.benchmark_group("sha256");
    for count in COUNTS {
        group.throughput(Throughput::Bytes((count * STREAM_BYTES) as u64));
        group.bench_function(BenchmarkId::new("streams", count), |bencher| {
            bencher.iter(|| {
                let mut hashers = vec![Hasher::default(); count];
                let pieces = black_box(&bytes).chunks(STREAM_BYTES);
                Hasher::update_together(&mut hashers.iter_mut().zip(pieces).collect::<Vec<_>>());
                hashers.into_iter().map(Hasher::finish).collect::<Vec<_>>()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, hashing);
criterion_main!(benches);
