//! What holds of every model and request.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

use glyd_gpu::fit::{CacheDtype, Needs, RUNTIME_BYTES, Request, needs, parse_gpu};
use proptest::prelude::*;
use serde_json::{Value, json};

fn models() -> Vec<Value> {
    let lines = include_str!("../../fixtures/fit/models.jsonl").lines();
    lines.map(|line| serde_json::from_str::<Value>(line).unwrap()["config"].take()).collect()
}

fn request(context: u64, batch: u64, tensor_parallel: u64) -> Request {
    Request {
        context: Some(context),
        batch,
        tensor_parallel,
        cache: CacheDtype::Bf16,
        runtime_bytes: RUNTIME_BYTES,
    }
}

fn at(config: &Value, context: u64, batch: u64) -> Needs {
    needs(config, &request(context, batch, 1)).unwrap()
}

/// Values that a hostile or broken config.json has.
fn hostile() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!(0)),
        Just(json!(-1)),
        Just(json!(1)),
        Just(json!(u64::MAX)),
        Just(json!(1_u64 << 40)),
        Just(json!(2.5)),
        Just(json!("many")),
        Just(json!(true)),
        Just(json!([])),
        Just(json!([1, "a", null])),
        Just(json!({"a": {"b": 1}})),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_cache_grows_with_the_context_and_never_shrinks(model in 0..52_usize, a in 0..300_000_u64, b in 0..300_000_u64) {
        let config = &models()[model];
        let (low, high) = (a.min(b), a.max(b));
        prop_assert!(at(config, low, 1).cache_bytes <= at(config, high, 1).cache_bytes);
    }

    #[test]
    fn the_batch_multiplies(model in 0..52_usize, context in 0..300_000_u64, batch in 1..1000_u64) {
        let config = &models()[model];
        let (one, many) = (at(config, context, 1), at(config, context, batch));
        prop_assert_eq!(one.cache_bytes * batch, many.cache_bytes);
        prop_assert_eq!(one.fixed_bytes * batch, many.fixed_bytes);
        prop_assert_eq!(one.token_bytes, many.token_bytes);
        prop_assert_eq!(many.layers.iter().map(|layers| layers.bytes).sum::<u64>(), many.cache_bytes);
    }

    #[test]
    fn tensor_parallelism_never_takes_more_and_never_less_than_its_share(model in 0..52_usize, power in 0..5_u32) {
        let config = &models()[model];
        let cards = 1 << power;
        let one = at(config, 8192, 1).cache_bytes;
        if let Ok(each) = needs(config, &request(8192, 1, cards)) {
            prop_assert!(each.cache_bytes <= one && each.cache_bytes * cards >= one);
        }
    }

    #[test]
    fn the_longest_context_fits_and_one_more_does_not(model in 0..52_usize, batch in 1..8_u64, gib in 1..200_u64) {
        let needs = at(&models()[model], 1, batch);
        let card = parse_gpu(&format!("{gib}GiB")).unwrap().total_bytes;
        let weights = card / 2;
        let fits = |context: u64| at(&models()[model], context, batch).total(weights) <= card;
        match needs.max_context(weights, card) {
            Some(0) => prop_assert!(!fits(1)),
            Some(longest) => prop_assert!(fits(longest) && !fits(longest + 1)),
            None => prop_assert!(fits(1 << 47)),
        }
    }

    #[test]
    fn a_hostile_config_is_an_answer_or_cannot_say(model in 0..52_usize, changes in prop::collection::vec((any::<prop::sample::Index>(), hostile()), 1..4)) {
        let mut config = models()[model].clone();
        let outer = config.as_object_mut().unwrap();
        let nested = outer.contains_key("text_config");
        let map = if nested { outer["text_config"].as_object_mut().unwrap() } else { outer };
        let keys: Vec<String> = map.keys().cloned().collect();
        for (index, value) in changes {
            map.insert(index.get(&keys).clone(), value);
        }
        for cards in [1, 3, 8] {
            if let Ok(needs) = needs(&config, &request(u64::MAX >> 20, 7, cards)) {
                let _ = (needs.total(u64::MAX), needs.max_context(1 << 40, 1 << 50));
            }
        }
    }
}

#[test]
fn no_config_at_all_cannot_say() {
    for config in
        [Value::Null, json!([]), json!({}), json!("llama"), json!({"text_config": {"text_config": 1}})]
    {
        assert!(needs(&config, &request(1, 1, 1)).is_err(), "{config}");
    }
}
