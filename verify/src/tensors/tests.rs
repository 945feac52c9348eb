//! Tensors hash the same whatever the memory they are decoded in.

use std::ops::ControlFlow;

use glyd_fixtures::Recipe;
use glyd_format::digest::hash_streams;
use glyd_format::manifest::Source;
use glyd_format::{Checkpoint, Layout, Packed};

use super::*;
use crate::content::{RUN_WEIGHTS, Task, tasks};
use crate::look::Cpu;

#[test]
fn tensors_hash_the_same_however_few_weights_are_decoded_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (dir.path().join("in"), dir.path().join("out"));
    Recipe::named("gpt_oss").make(&source);
    let options = glyd_packers::Options {
        layout: Layout::Mma,
        merge: true,
        cast: false,
        shard_bytes: glyd_packers::SHARD_BYTES,
        threads: Some(2),
        source: Source { repo: b"a".to_vec(), revision: None },
    };
    glyd_packers::pack(&Checkpoint::open(&source).unwrap(), &out, &options, &()).unwrap();
    let packed = Packed::open(&out).unwrap().packed.unwrap();
    let transposed = |task: &Task<'_>| matches!(task, Task::Packed(member) if member.entry.experts.is_some_and(|experts| experts.transposed));
    let tasks = tasks(&packed);
    assert!(tasks.iter().any(transposed));
    // A step; a few of a strip; all of one; and all.
    for run_weights in [1 << 10, 1 << 11, 3 << 10, 1 << 12, 1 << 13, 1 << 14, RUN_WEIGHTS] {
        let look = Look { decoder: &Cpu, packed: &packed, progress: &(), run_weights };
        let mut held = tasks.iter().filter_map(Task::held);
        let mut hashed = 0;
        let begin = || held.next().map(|held| Tensor::new(&look, held, Memory::default()));
        hash_streams(begin, |tensor, digest| {
            let checked = digest.and_then(|digest| tensor.check_digest(digest));
            assert!(checked.is_ok(), "{run_weights}");
            hashed += 1;
            ControlFlow::Continue(())
        });
        assert!(hashed > 10, "{hashed}");
    }
}
