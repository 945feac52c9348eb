//! What is in the output folder when a job is stopped, killed, or fails: the old checkpoint or the new
//! one, or what is refused; and nothing else once the next job is done.
#![cfg(unix)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::exit,
    reason = "tests' code: it panics when it fails, says what it skips, and runs itself"
)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Model, files, holds, options, pack, verify};
use glyd_fixtures::random::SplitMix64;
use glyd_fixtures::weights::{trained_like, uniform_bits};
use glyd_format::{Checkpoint, Layout, Progress};
use glyd_packers::{Error, Options};
use glyd_verify::Verdict;

/// A small model of a few shards, its weights by a seed; another seed's has other tensors too.
fn model(seed: u64) -> Model {
    let mut model = Model::unknown();
    for number in 0..3 + seed {
        let weights = trained_like(64 * 64, seed * 100 + number);
        model = model.with_weights(&format!("layers.{number}.weight"), &[64, 64], &weights);
    }
    model.with_weights("norm", &[64], &trained_like(64, seed))
}

fn sharded(layout: Layout) -> Options {
    Options { shard_bytes: 8000, ..options(layout) }
}

/// A model's folder, with files beside the weights.
fn source(dir: &Path, name: &str, model: &Model) -> PathBuf {
    let source = dir.join(name);
    model.write(&source);
    fs::create_dir_all(source.join("sub/deep")).unwrap();
    fs::write(source.join("tokenizer.json"), name).unwrap();
    fs::write(source.join("sub/deep/code.py"), name).unwrap();
    source
}

/// Stops at the n-th question.
struct StopAt {
    left: AtomicU64,
}

impl StopAt {
    fn new(at: u64) -> Self {
        StopAt { left: AtomicU64::new(at) }
    }
}

impl Progress for StopAt {
    fn stopped(&self) -> bool {
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.is_err()
    }
}

#[test]
fn a_job_that_is_stopped_leaves_the_folder_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let old = model(1);
    let mut new = model(2);
    // Work that begins anew is stopped too.
    new.set("layers.2.weight", &[64, 64], &uniform_bits(4096, 1));
    let (old, new_source) = (source(dir.path(), "old", &old), source(dir.path(), "new", &new));
    let (fresh, out) = (dir.path().join("fresh"), dir.path().join("out"));
    pack(&old, &out, &sharded(Layout::Mma12)).unwrap();
    let before = files(&out);
    let checkpoint = Checkpoint::open(&new_source).unwrap();
    let options = Options { threads: Some(1), ..sharded(Layout::Mma) };
    let mut stopped = 0;
    loop {
        let progress = StopAt::new(stopped);
        match glyd_packers::pack(&checkpoint, &out, &options, &progress) {
            Ok(_) => break,
            Err(Error::Interrupted) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(files(&out) == before, "stopped at question {stopped}");
        let progress = StopAt::new(stopped);
        assert!(matches!(
            glyd_packers::pack(&checkpoint, &fresh, &options, &progress),
            Err(Error::Interrupted)
        ));
        assert!(!fresh.exists(), "stopped at question {stopped}");
        stopped += 1;
    }
    assert!(stopped >= 20, "{stopped}");
    holds(&out, &new);
}

/// Stops once there are fewer shards than there were.
struct StopSecondTry {
    staging: PathBuf,
    most: AtomicU64,
    told: AtomicU64,
}

impl Progress for StopSecondTry {
    fn advance(&self, bytes: u64) {
        self.told.fetch_add(bytes, Ordering::SeqCst);
    }

    fn stopped(&self) -> bool {
        let count = fs::read_dir(&self.staging).map_or(0, |entries| entries.count() as u64);
        count < self.most.fetch_max(count, Ordering::SeqCst)
    }
}

#[test]
fn work_that_begins_anew_can_be_stopped_and_is_not_counted_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = model(3);
    model.set("layers.5.weight", &[64, 64], &uniform_bits(4096, 1));
    let (source, out) = (source(dir.path(), "in", &model), dir.path().join("out"));
    let checkpoint = Checkpoint::open(&source).unwrap();
    let progress = StopSecondTry {
        staging: out.join(".glyd-partial"),
        most: AtomicU64::new(0),
        told: AtomicU64::new(0),
    };
    let options = Options { shard_bytes: 1, threads: Some(1), ..options(Layout::Mma) };
    let done = glyd_packers::pack(&checkpoint, &out, &options, &progress);
    assert!(matches!(done, Err(Error::Interrupted)), "{done:?}");
    assert!(progress.most.load(Ordering::SeqCst) > 3);
    assert!(progress.told.load(Ordering::SeqCst) <= model.bytes());
    assert!(!out.exists());
}

/// What the test binary does when it is run by a test of this file: packs, and says how that went.
#[test]
fn helper() {
    let Some(source) = std::env::var_os("GLYD_TEST_SOURCE") else { return };
    let out = PathBuf::from(std::env::var_os("GLYD_TEST_OUT").unwrap());
    let layout = std::env::var("GLYD_TEST_LAYOUT").unwrap().parse().unwrap();
    match pack(Path::new(&source), &out, &sharded(layout)) {
        Ok(_) => std::process::exit(0),
        Err(error) => {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            eprintln!("{error}{}", cause.unwrap_or_default());
            std::process::exit(2);
        }
    }
}

/// Runs [`helper`] below a shell's `before`.
fn run_helper(before: &str, source: &Path, out: &Path, layout: Layout) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("{before} exec \"$0\" helper --exact --nocapture --test-threads 1"));
    command.arg(std::env::current_exe().unwrap());
    command.env("GLYD_TEST_SOURCE", source).env("GLYD_TEST_OUT", out).env("GLYD_TEST_LAYOUT", layout.name());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
fn a_job_that_is_killed_leaves_one_checkpoint_or_what_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (model(1), model(2));
    let (old_source, new_source) = (source(dir.path(), "old", &old), source(dir.path(), "new", &new));
    let out = dir.path().join("out");
    pack(&new_source, &out, &sharded(Layout::Mma)).unwrap();
    let new_files = weights_of(&out);
    fs::remove_dir_all(&out).unwrap();
    pack(&old_source, &out, &sharded(Layout::Mma12)).unwrap();
    let old_files = weights_of(&out);
    let started = Instant::now();
    let done = run_helper("", &new_source, &dir.path().join("timed"), Layout::Mma).status().unwrap();
    assert!(done.success());
    let whole = u64::try_from(started.elapsed().as_micros()).unwrap();
    let mut random = SplitMix64::new(started.elapsed().as_nanos().to_le_bytes()[0].into());
    let mut seen = BTreeMap::new();
    for round in 0..40 {
        let mut child = run_helper("", &new_source, &out, Layout::Mma).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(random.below(whole * 5 / 4)));
        child.kill().unwrap();
        child.wait().unwrap();
        let found = weights_of(&out);
        let what = if found == old_files {
            "old"
        } else if found == new_files {
            "new"
        } else {
            let refused = glyd_verify::verify(&out, &glyd_verify::Options::default(), &());
            match refused {
                Err(_) => "refused",
                Ok(report) => {
                    assert_eq!(report.verdict(), Verdict::Damaged, "round {round}: a mixture verifies");
                    panic!("round {round}: {:?}", found.keys());
                }
            }
        };
        *seen.entry(what).or_insert(0) += 1;
        // The next job puts it right, whichever model it is of.
        let next =
            if random.below(2) == 0 { (&old_source, Layout::Mma12) } else { (&new_source, Layout::Mma) };
        pack(next.0, &out, &sharded(next.1)).unwrap();
        let wanted = if next.1 == Layout::Mma { &new_files } else { &old_files };
        assert!(weights_of(&out) == *wanted, "round {round}");
        assert!(files(&out).keys().all(|name| !name.contains(".glyd") && !name.ends_with(".part")));
        pack(&old_source, &out, &sharded(Layout::Mma12)).unwrap();
    }
    eprintln!("{seen:?}");
}

/// The files of the format in a folder.
fn weights_of(out: &Path) -> BTreeMap<String, Vec<u8>> {
    let format = |name: &str| name == "glyd.json" || name.starts_with("model");
    files(out).into_iter().filter(|(name, _)| format(name)).collect()
}

/// Runs the helper where writes fail, over an old checkpoint and over none.
fn fails_to_write(before: &str, told: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (source(dir.path(), "old", &model(1)), source(dir.path(), "new", &model(2)));
    let out = dir.path().join("out");
    pack(&old, &out, &sharded(Layout::Mma12)).unwrap();
    let held = files(&out);
    for (out, held) in [(out, Some(held)), (dir.path().join("fresh"), None)] {
        let done = run_helper(before, &new, &out, Layout::Mma).output().unwrap();
        let message = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2), "{message}");
        for part in told {
            assert!(message.contains(part), "{part}: {message}");
        }
        match held {
            Some(held) => assert!(files(&out) == held),
            None => assert!(!out.exists()),
        }
    }
}

#[test]
fn a_file_that_may_not_grow_is_named_and_nothing_is_left() {
    // In blocks of 512 bytes: no shard fits, or the first do and `glyd.json`'s text does not.
    fails_to_write("trap '' XFSZ; ulimit -f 4;", &["00000.part`", "File too large"]);
    fails_to_write("trap '' XFSZ; ulimit -f 0;", &["00000.part`", "File too large"]);
}

#[test]
fn a_full_disk_is_told_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mount = |arguments: &[&str]| {
        let done = Command::new(arguments[0]).args(&arguments[1..]).arg(&disk).stderr(Stdio::null()).status();
        done.is_ok_and(|done| done.success())
    };
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs"]) {
        eprintln!("skipped: no tmpfs can be mounted here");
        return;
    }
    let checked = std::panic::catch_unwind(|| {
        let (small, large) = (model(1), {
            let weights = trained_like(64 * 4096, 1);
            model(1).with_weights("z.weight", &[64, 4096], &weights)
        });
        let (small_source, source) = (source(dir.path(), "small", &small), source(dir.path(), "in", &large));
        let out = disk.join("out");
        for shard_bytes in [8000, 1 << 30] {
            let options = Options { shard_bytes, ..options(Layout::Mma) };
            let error = pack(&source, &out, &options).unwrap_err().to_string();
            assert!(error.contains("free on its disk"), "{error}");
            assert!(!out.exists());
        }
        pack(&small_source, &out, &sharded(Layout::Mma)).unwrap();
        let held = files(&out);
        pack(&source, &out, &sharded(Layout::Mma)).unwrap_err();
        assert!(files(&out) == held);
        // It is the files beside the weights that do not fit.
        fs::write(small_source.join("large.txt"), vec![1; 100_000]).unwrap();
        let error = pack(&small_source, &out, &sharded(Layout::Mma)).unwrap_err();
        assert!(error.to_string().contains("large.txt"), "{error}");
        assert!(files(&out) == held);
        holds(&out, &small);
    });
    assert!(mount(&["umount"]));
    checked.unwrap();
}

/// Does something to a source at the n-th question.
struct Meddle<F: Fn() + Sync> {
    left: AtomicU64,
    meddle: F,
}

impl<F: Fn() + Sync> Progress for Meddle<F> {
    fn stopped(&self) -> bool {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            (self.meddle)();
        }
        false
    }
}

#[test]
fn a_source_that_changes_while_it_is_packed_is_named() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 4] = [
        ("shortened", |path| fs::File::options().write(true).open(path).unwrap().set_len(5000).unwrap()),
        ("emptied", |path| fs::write(path, "").unwrap()),
        ("rewritten", |path| {
            let mut bytes = fs::read(path).unwrap();
            bytes.iter_mut().rev().take(30_000).for_each(|byte| *byte ^= 0x55);
            std::thread::sleep(Duration::from_millis(20));
            fs::write(path, bytes).unwrap();
        }),
        ("replaced", |path| {
            let other = path.with_extension("other");
            fs::copy(path, &other).unwrap();
            fs::rename(other, path).unwrap();
        }),
    ];
    let dir = tempfile::tempdir().unwrap();
    let model = model(3);
    for (what, change) in changes {
        let mut finished = false;
        for at in 1..100 {
            let source = source(dir.path(), &format!("{what}-{at}"), &model);
            let file = source.join("model.safetensors");
            let out = dir.path().join("out");
            let checkpoint = Checkpoint::open(&source).unwrap();
            let progress = Meddle { left: AtomicU64::new(at), meddle: || change(&file) };
            let options = Options { threads: Some(2), ..sharded(Layout::Mma) };
            let done = glyd_packers::pack(&checkpoint, &out, &options, &progress);
            let meddled = progress.left.load(Ordering::SeqCst).cast_signed() <= 0;
            match done {
                Ok(_) => {
                    // Past the last look at the weights, or never.
                    holds(&out, &model);
                    fs::remove_dir_all(&out).unwrap();
                    if !meddled {
                        finished = true;
                        break;
                    }
                }
                Err(error) => {
                    let message = error.to_string();
                    assert!(message.contains("model.safetensors`"), "{what} at {at}: {message}");
                    assert!(message.contains("expected"), "{what} at {at}: {message}");
                    assert!(!out.exists(), "{what} at {at}");
                }
            }
            fs::remove_dir_all(&source).unwrap();
        }
        assert!(finished, "{what}: fewer questions are asked");
    }
}

#[test]
fn a_file_beside_the_weights_that_changes_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path(), "in", &model(1));
    let beside = source.join("large.txt");
    let mut refused = 0;
    for at in 1..60 {
        fs::write(&beside, vec![1; 5 << 20]).unwrap();
        let out = dir.path().join("out");
        let checkpoint = Checkpoint::open(&source).unwrap();
        let meddle = || fs::File::options().write(true).open(&beside).unwrap().set_len(3 << 20).unwrap();
        let progress = Meddle { left: AtomicU64::new(at), meddle };
        match glyd_packers::pack(&checkpoint, &out, &sharded(Layout::Mma), &progress) {
            Ok(_) => fs::remove_dir_all(&out).unwrap(),
            Err(error) => {
                assert!(error.to_string().contains("large.txt"), "{error}");
                assert!(!out.exists());
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
}

#[test]
fn a_second_job_into_the_folder_is_refused_and_the_first_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (model(1), model(2));
    let (first_source, second_source) = (source(dir.path(), "a", &first), source(dir.path(), "b", &second));
    let out = dir.path().join("out");
    let link = dir.path().join("link");
    symlink(&out, &link).unwrap();
    let checkpoint = Checkpoint::open(&first_source).unwrap();
    let tried = AtomicU64::new(0);
    let meddle = || {
        for name in [&out, &link] {
            let error = pack(&second_source, name, &sharded(Layout::Mma)).unwrap_err().to_string();
            assert!(error.contains("another run is writing to it"), "{error}");
        }
        tried.fetch_add(1, Ordering::SeqCst);
    };
    let progress = Meddle { left: AtomicU64::new(5), meddle };
    glyd_packers::pack(&checkpoint, &out, &sharded(Layout::Mma), &progress).unwrap();
    assert_eq!(tried.load(Ordering::SeqCst), 1);
    holds(&out, &first);
    pack(&second_source, &link, &sharded(Layout::Mma)).unwrap();
    holds(&out, &second);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn jobs_that_race_for_a_folder_leave_one_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let models = [model(1), model(2), model(3)];
    let sources: Vec<PathBuf> =
        models.iter().enumerate().map(|(at, model)| source(dir.path(), &format!("{at}"), model)).collect();
    let out = dir.path().join("out");
    for _ in 0..10 {
        let done: Vec<bool> = std::thread::scope(|scope| {
            let jobs: Vec<_> = sources
                .iter()
                .map(|source| {
                    scope.spawn(|| pack(source, &out, &sharded(Layout::Mma)).map_err(|e| e.to_string()))
                })
                .collect();
            jobs.into_iter()
                .map(|job| match job.join().unwrap() {
                    Ok(_) => true,
                    Err(error) => {
                        assert!(
                            error.contains("another run is writing") || error.contains("cannot"),
                            "{error}"
                        );
                        false
                    }
                })
                .collect()
        });
        assert!(done.contains(&true));
        assert_eq!(verify(&out).verdict(), Verdict::Good);
        assert!(files(&out).keys().all(|name| !name.contains(".glyd")));
    }
}

#[test]
fn the_source_under_any_name_is_no_output() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(1);
    let source = source(dir.path(), "in", &model);
    let held = files(&source);
    symlink(&source, dir.path().join("link")).unwrap();
    symlink(source.join("sub"), dir.path().join("deep")).unwrap();
    let around = dir.path().to_owned();
    let relative = relative_to_here(&source);
    for out in [
        source.clone(),
        dir.path().join("link"),
        dir.path().join("in/../in"),
        dir.path().join("in/."),
        source.join("sub"),
        source.join("new"),
        dir.path().join("link/new"),
        dir.path().join("deep/new"),
        around,
        relative,
    ] {
        let error = pack(&source, &out, &sharded(Layout::Mma)).unwrap_err().to_string();
        assert!(
            error.contains(source.canonicalize().unwrap().to_str().unwrap()),
            "{}: {error}",
            out.display()
        );
        assert!(files(&source) == held, "{}", out.display());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "{}", out.display());
    }
}

fn relative_to_here(path: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap().canonicalize().unwrap();
    let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
    up.join(path.canonicalize().unwrap().strip_prefix("/").unwrap())
}

/// Links and folders in the output that stand where the new checkpoint's files go.
#[test]
fn what_is_in_the_way_is_named_before_anything_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (model(1), model(2));
    let (old_source, new_source) = (source(dir.path(), "old", &old), source(dir.path(), "new", &new));
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir_all(elsewhere.join("deep")).unwrap();
    fs::write(elsewhere.join("deep/code.py"), "kept").unwrap();
    type Change<'a> = (&'a str, Box<dyn Fn(&Path) + 'a>);
    let changes: [Change<'_>; 4] = [
        ("tokenizer.json", Box::new(|path| fs::create_dir(path).unwrap())),
        ("sub", Box::new(|path| symlink(&elsewhere, path).unwrap())),
        ("sub/deep", Box::new(|path| fs::write(path, "").unwrap())),
        ("model-00001-of-00009.safetensors", Box::new(|path| fs::create_dir(path).unwrap())),
    ];
    for (name, change) in changes {
        let out = dir.path().join("out");
        pack(&old_source, &out, &sharded(Layout::Mma12)).unwrap();
        let path = out.join(name);
        if path.is_dir() {
            fs::remove_dir_all(&path).unwrap();
        } else if path.exists() {
            fs::remove_file(&path).unwrap();
        }
        change(&path);
        let held = files(&out);
        let error = pack(&new_source, &out, &sharded(Layout::Mma)).unwrap_err().to_string();
        assert!(error.contains(&format!("`{name}` in it is ")), "{error}");
        assert!(files(&out) == held, "{name}");
        holds(&out, &old);
        fs::remove_dir_all(&out).unwrap();
    }
    assert_eq!(fs::read(elsewhere.join("deep/code.py")).unwrap(), b"kept");
}

#[test]
fn files_beside_the_weights_that_cannot_be_read_are_told_before_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path(), "in", &model(1));
    let locked = source.join("locked.txt");
    fs::write(&locked, "a").unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&locked).is_ok() {
        eprintln!("skipped: who runs this reads every file");
        return;
    }
    let out = dir.path().join("out");
    let checkpoint = Checkpoint::open(&source).unwrap();
    // Asked nothing: no work was begun.
    let error = glyd_packers::pack(&checkpoint, &out, &sharded(Layout::Mma), &StopAt::new(0)).unwrap_err();
    assert!(error.to_string().contains("locked.txt"), "{error}");
    assert!(!out.exists());
}

#[test]
fn files_have_the_modes_that_the_umask_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path(), "in", &model(1));
    fs::set_permissions(source.join("tokenizer.json"), fs::Permissions::from_mode(0o444)).unwrap();
    for (umask, file, folder) in [("0022", 0o644, 0o755), ("0007", 0o660, 0o770)] {
        let out = dir.path().join(format!("out-{umask}"));
        let done = run_helper(&format!("umask {umask};"), &source, &out, Layout::Mma).status().unwrap();
        assert!(done.success());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&out), folder);
        assert_eq!(mode(&out.join("sub/deep")), folder);
        for name in files(&out).into_keys() {
            assert_eq!(mode(&out.join(&name)), file, "{name}");
        }
    }
}

#[test]
fn paths_of_any_kind_come_through() {
    use std::os::unix::ffi::OsStrExt;
    let dir = tempfile::tempdir().unwrap();
    let model = model(1);
    for name in ["模型 ☃ ü/in dir", "line\nbreak", "выход/o ut"] {
        let source = source(dir.path(), name, &model);
        let out = dir.path().join(format!("{name}-out"));
        pack(&source, &out, &sharded(Layout::Mma)).unwrap();
        holds(&out, &model);
    }
    let raw = std::ffi::OsStr::from_bytes(b"not\xffutf8");
    fs::create_dir(dir.path().join(raw)).unwrap();
    let source = source(&dir.path().join(raw), "in", &model);
    fs::write(source.join(raw), "beside").unwrap();
    let out = dir.path().join(raw).join("out");
    pack(&source, &out, &sharded(Layout::Mma)).unwrap();
    assert_eq!(verify(&out).verdict(), Verdict::Good);
    assert_eq!(fs::read(out.join(raw)).unwrap(), b"beside");
}
