//! Reading `config.json`, which is anyone's: a field that is not there, or not what it should be, is
//! simply not told.

use serde_json::Value;

/// The field at a dotted path, unless it is absent or null.
///
/// A flat config.json (Qwen2-VL's) has a sub-config's fields at its top level: where the path's first
/// part is no object, its last part is looked up there.
pub(super) fn look<'a>(config: &'a Value, path: &str) -> Option<&'a Value> {
    let flat = match path.split_once('.') {
        Some((first, _)) => !config.get(first).is_some_and(Value::is_object),
        None => false,
    };
    let path = if flat { path.rsplit('.').next().unwrap_or(path) } else { path };
    exactly(config, path)
}

/// As [`look`], of a config that is not flat.
pub(super) fn exactly<'a>(config: &'a Value, path: &str) -> Option<&'a Value> {
    let field = path.split('.').try_fold(config, |at, part| at.get(part))?;
    Some(field).filter(|value| !value.is_null())
}

/// A count above 0 at a dotted path.
pub(super) fn count(config: &Value, path: &str) -> Option<u64> {
    look(config, path)?.as_u64().filter(|&n| n > 0)
}

/// The text model's config of a composite's, or the config itself.
pub(super) fn text(config: &Value) -> &Value {
    let text = config.get("text_config");
    text.filter(|t| t.as_object().is_some_and(|t| !t.is_empty())).unwrap_or(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn looks_up_nested_and_flat_configs() {
        let nested = json!({"text_config": {"n": 3, "none": null}});
        assert_eq!(count(&nested, "text_config.n"), Some(3));
        assert_eq!(look(&nested, "text_config.none"), None);
        assert_eq!(count(&json!({"n": 4, "text_config": null}), "text_config.n"), Some(4));
        assert_eq!(count(&json!([1]), "text_config.n"), None);
        assert_eq!(count(&json!({"n": -1}), "n"), None);
    }
}
