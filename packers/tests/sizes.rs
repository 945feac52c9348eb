//! What packs would take, counted without packing, is what they take packed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests' code: it panics when it fails")]

mod common;

use common::{Model, options};
use glyd_format::{Buffer, Checkpoint, Layout};
use glyd_packers::measure_sizes;

#[test]
fn counted_sizes_are_those_of_the_packed_files() {
    for recipe in ["llama", "gpt_oss"] {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("model");
        Model::recipe(recipe).write(&source);
        let checkpoint = Checkpoint::open(&source).unwrap();
        let sizes = measure_sizes(&checkpoint, &options(Layout::Mma), &()).unwrap();
        assert!(!sizes.is_empty());
        for (at, layout) in Layout::ALL.into_iter().enumerate() {
            let out = dir.path().join(layout.name());
            common::pack(&source, &out, &options(layout)).unwrap();
            let packed = glyd_format::Packed::open(&out).unwrap().packed.unwrap();
            for (name, entry) in &packed.manifest().packs {
                let bytes: u64 = Buffer::ALL
                    .iter()
                    .map(|&buffer| {
                        let name =
                            glyd_format::manifest::buffer_name(name, entry.experts.is_some(), layout, buffer);
                        packed.weights().tensor(packed.weights().find(&name).unwrap()).bytes()
                    })
                    .sum();
                assert_eq!(sizes[name][at], bytes, "{recipe} {layout} {name}");
            }
            assert_eq!(packed.manifest().packs.len(), sizes.len());
        }
    }
}
