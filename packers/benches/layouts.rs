//! The hot loops, a thread: `cargo bench -p glyd-packers`. Read the rates against `sha256`'s, in the same
//! run: machines are noisy, and hashing is what cannot be spared.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use glyd_fixtures::weights::trained_like;
use glyd_format::simd::Simd;
use glyd_format::step::{STEP_COLUMNS, STEP_ROWS};
use glyd_format::{Digest, Layout};
use glyd_packers::encode::{Encoded, Encoder};
use glyd_packers::histogram::Histogram;

const COLUMNS: usize = 4096;
const STRIPS: usize = 8;

fn loops(criterion: &mut Criterion) {
    let weights = trained_like(STRIPS * STEP_ROWS * COLUMNS, 1);
    let mut group = criterion.benchmark_group("loops");
    group.throughput(Throughput::Bytes(2 * weights.len() as u64));
    group.bench_function("sha256", |bencher| {
        bencher.iter(|| Digest::of(bytemuck::cast_slice(black_box(&weights))));
    });
    let mut histogram = Histogram::default();
    group.bench_function("histogram", |bencher| bencher.iter(|| histogram.add(black_box(&weights))));
    for layout in Layout::ALL {
        let encoder = Encoder::new(histogram.coding(layout));
        group.bench_function(BenchmarkId::new("count", layout), |bencher| {
            bencher.iter(|| {
                weights.chunks_exact(STEP_COLUMNS).map(|cell| encoder.counts(black_box(cell))).sum::<u64>()
            });
        });
        for name in Simd::NAMES {
            let Ok(simd) = Simd::named(name) else { continue };
            let mut encoded = Encoded::default();
            let strips = || weights.chunks_exact(STEP_ROWS * COLUMNS);
            group.bench_function(BenchmarkId::new(format!("encode {layout}"), name), |bencher| {
                bencher.iter(|| {
                    for strip in strips() {
                        encoder.encode_by(
                            simd,
                            black_box(strip),
                            COLUMNS,
                            COLUMNS / STEP_COLUMNS,
                            &mut encoded,
                        );
                    }
                });
            });
            let mut rows = vec![0; STEP_ROWS * COLUMNS];
            group.bench_function(BenchmarkId::new(format!("decode {layout}"), name), |bencher| {
                bencher.iter(|| {
                    for _ in strips() {
                        encoder
                            .coding()
                            .decode_by(simd, &black_box(&encoded).run(), &mut rows, COLUMNS)
                            .expect("what was encoded decodes");
                    }
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, loops);
criterion_main!(benches);
