//! Per-request options in JSON.

use serde_json::Value;

use crate::guard::Refusal;
use specds_core::engine::{OptionValue, RequestOptions};

/// Reads the options of a JSON object; `None` has none.
pub(crate) fn options(given: Option<Result<&str, Refusal>>) -> RequestOptions {
    let mut options = RequestOptions::default();
    match given.map(|text| text.map(serde_json::from_str)) {
        None => {}
        Some(Ok(Ok(Value::Object(object)))) => {
            for (key, value) in object {
                let name = key.strip_prefix(RequestOptions::PREFIX);
                options.set(name.unwrap_or(&key), value_of(value));
            }
        }
        Some(Ok(_)) => options.unreadable.push("`options` must be a JSON object".to_owned()),
        Some(Err(Refusal(reason))) => options.unreadable.push(reason),
    }
    options
}

fn value_of(value: Value) -> OptionValue {
    match value {
        Value::Null => OptionValue::Absent,
        Value::Bool(value) => OptionValue::Switch(value),
        Value::Number(number) => number.as_i64().map_or(OptionValue::Other, OptionValue::Integer),
        Value::String(text) => OptionValue::Text(text),
        Value::Array(_) => {
            serde_json::from_value(value).map_or(OptionValue::Other, OptionValue::Tokens)
        }
        Value::Object(_) => OptionValue::Other,
    }
}
