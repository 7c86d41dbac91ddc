//! Per-request options.

use serde_json::Value;

use crate::guard::Refusal;

/// The options of a request. An option that cannot be read has its default.
#[derive(Debug, Default)]
pub(crate) struct RequestOptions {
    pub(crate) is_off: bool,
    pub(crate) tenant: String,
    pub(crate) group: Option<String>,
    pub(crate) predicted_output: Vec<u32>,
    /// A message for each option that cannot be read.
    pub(crate) unreadable: Vec<String>,
}

impl RequestOptions {
    /// Reads a JSON object; `None` has no options.
    pub(crate) fn read(given: Option<Result<&str, Refusal>>) -> Self {
        let mut options = Self::default();
        match given.map(|text| text.map(serde_json::from_str)) {
            None => {}
            Some(Ok(Ok(Value::Object(object)))) => {
                for (key, value) in object {
                    if let Err(wanted) = options.set(&key, value) {
                        options.unreadable.push(format!("`{key}` must be {wanted}"));
                    }
                }
            }
            Some(Ok(_)) => options.unreadable.push("`options` must be a JSON object".to_owned()),
            Some(Err(Refusal(reason))) => options.unreadable.push(reason),
        }
        options
    }

    /// Sets an option, or returns what it must be.
    fn set(&mut self, key: &str, value: Value) -> Result<(), &'static str> {
        match key {
            "specds_off" => {
                self.is_off = match value.to_string().trim_matches('"').to_lowercase().as_str() {
                    "true" | "1" => true,
                    "false" | "0" | "" | "null" => false,
                    _ => return Err("true or false"),
                }
            }
            "specds_tenant" => self.tenant = name(&value).ok_or("a string")?,
            "specds_group" => self.group = Some(name(&value).ok_or("a string")?),
            "specds_predicted_output" => {
                let token_ids = serde_json::from_value(value);
                self.predicted_output = token_ids.map_err(|_| "text or token ids")?;
            }
            _ => return Err("an option of this version"),
        }
        Ok(())
    }
}

/// Returns a name, which may also be a number.
fn name(value: &Value) -> Option<String> {
    let number = || value.is_number().then(|| value.to_string());
    value.as_str().map(str::to_owned).or_else(number)
}
