//! The hot loops, a thread: `cargo bench -p glyd-packers`. Times are the processor's, which other work
//! disturbs least. Read the rates against `sha256`'s, in the same run: hashing is what cannot be spared.

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use glyd_fixtures::weights::trained_like;
use glyd_format::simd::Simd;
use glyd_format::step::{STEP_COLUMNS, STEP_ROWS, exponent};
use glyd_format::{Digest, Layout};
use glyd_packers::count::{Counts, Lines};
use glyd_packers::encode::{Encoded, Encoder};
use glyd_packers::histogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

const COLUMNS: usize = 4096;
const STRIPS: usize = 8;

/// The time that the thread ran.
struct CpuTime;

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("below a second"))
    }

    fn end(&self, start: Duration) -> Duration {
        self.start() - start
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_secs_f64() * 1e9
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        static WALL: WallTime = WallTime;
        WALL.formatter()
    }
}

fn loops(criterion: &mut Criterion<CpuTime>) {
    let weights = trained_like(STRIPS * STEP_ROWS * COLUMNS, 1);
    let mut group = criterion.benchmark_group("loops");
    group.throughput(Throughput::Bytes(2 * weights.len() as u64));
    group.bench_function("sha256", |bencher| {
        bencher.iter(|| Digest::of(bytemuck::cast_slice(black_box(&weights))));
    });
    let mut histogram = Histogram::default();
    histogram.add(&weights);
    let simds = || Simd::NAMES.into_iter().filter_map(|name| Some((name, Simd::named(name).ok()?)));
    for (name, simd) in simds() {
        let exponents: Vec<u8> = weights.iter().map(|&weight| exponent(weight)).collect();
        group.bench_function(BenchmarkId::new("histogram", name), |bencher| {
            bencher.iter(|| histogram.add_exponents_by(simd, black_box(&exponents)));
        });
    }
    for layout in Layout::ALL {
        let encoder = Encoder::new(histogram.coding(layout));
        let lines =
            Lines { line_weights: COLUMNS as u64, cell_weights: STEP_COLUMNS, group_lines: STEP_ROWS as u64 };
        for (name, simd) in simds() {
            group.bench_function(BenchmarkId::new(format!("count {layout}"), name), |bencher| {
                let mut counts = Counts::new(lines, *encoder.coding());
                bencher.iter(|| {
                    counts.add_by(simd, black_box(&weights), |steps| {
                        assert!(!black_box(steps).is_empty());
                    });
                });
            });
            let (mut encoded, strip_steps) = (Encoded::default(), COLUMNS / STEP_COLUMNS);
            let strips = || weights.chunks_exact(STEP_ROWS * COLUMNS);
            group.bench_function(BenchmarkId::new(format!("encode {layout}"), name), |bencher| {
                bencher.iter(|| {
                    for strip in strips() {
                        encoded.begin(layout, strip_steps);
                        encoder.encode_by(simd, black_box(strip), COLUMNS, strip_steps, &mut encoded);
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
        group.bench_function(BenchmarkId::new("encode and check", layout), |bencher| {
            let (mut encoded, strip_steps) = (Encoded::default(), COLUMNS / STEP_COLUMNS);
            bencher.iter(|| {
                for strip in weights.chunks_exact(STEP_ROWS * COLUMNS) {
                    encoded.begin(layout, strip_steps);
                    encoder
                        .encode_checked(black_box(strip), COLUMNS, strip_steps, &mut encoded)
                        .expect("what was encoded decodes");
                }
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime);
    targets = loops
}
criterion_main!(benches);
