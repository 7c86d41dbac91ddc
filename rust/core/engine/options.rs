//! The options of one request.

use crate::engine::requests::Context;

/// The value of an option, as JSON and Python have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionValue {
    /// `null` or `None`, which stands for an absent option.
    Absent,
    Switch(bool),
    Integer(i64),
    Text(String),
    Tokens(Vec<u32>),
    Other,
}

/// The options of a request. An option that cannot be read has its default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestOptions {
    /// True if the request gets no drafts.
    pub is_off: bool,
    /// The request's tenant; empty if it names none.
    pub tenant: String,
    /// The name of its request group.
    pub group: Option<String>,
    /// Token ids of the predicted output; empty for none.
    pub predicted_output: Vec<u32>,
    /// True if the request has penalties, or tokens that it forbids or prefers.
    pub is_penalized: bool,
    /// A message for each option that cannot be read.
    pub unreadable: Vec<String>,
}

impl RequestOptions {
    /// Start of the names of options among other arguments of a request.
    pub const PREFIX: &str = "specds_";

    /// Returns a context without tokens, or `None` if the request gets no drafts.
    pub fn context(&self) -> Option<Context<'_>> {
        (!self.is_off).then(|| Context {
            tenant: &self.tenant,
            group: self.group.as_deref(),
            predicted_output: &self.predicted_output,
            is_penalized: self.is_penalized,
            unreadable_options: &self.unreadable,
            ..Context::default()
        })
    }

    /// Sets the option of this name, without [`PREFIX`](Self::PREFIX). An integer names a tenant or a group by its
    /// digits.
    pub fn set(&mut self, name: &str, value: OptionValue) {
        use OptionValue::{Absent, Integer, Switch, Text, Tokens};
        let needs = match (name, value) {
            ("off" | "penalized" | "tenant" | "group" | "predicted_output", Absent) => return,
            ("off" | "penalized", value) => match is_on(&value) {
                Some(is_on) if name == "off" => return self.is_off = is_on,
                Some(is_on) => return self.is_penalized = is_on,
                None => "must be true or false",
            },
            ("tenant", Text(name)) => return self.tenant = name,
            ("tenant", Integer(number)) => return self.tenant = number.to_string(),
            ("group", Text(name)) => return self.group = Some(name),
            ("group", Integer(number)) => return self.group = Some(number.to_string()),
            ("predicted_output", Tokens(tokens)) => return self.predicted_output = tokens,
            ("tenant" | "group", Switch(_) | Tokens(_) | OptionValue::Other) => {
                "must be a string or an integer"
            }
            ("predicted_output", _) => "must be a list of token ids",
            _ => "is unknown",
        };
        self.unreadable.push(format!("`{name}` {needs}"));
    }
}

fn is_on(value: &OptionValue) -> Option<bool> {
    match value {
        OptionValue::Switch(is_on) => Some(*is_on),
        OptionValue::Integer(number) => [false, true].get(usize::try_from(*number).ok()?).copied(),
        OptionValue::Text(text) => match text.to_ascii_lowercase().as_str() {
            "true" | "1" => Some(true),
            "false" | "0" | "" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: OptionValue) -> RequestOptions {
        let mut options = RequestOptions::default();
        options.set(name, value);
        options
    }

    #[test]
    fn each_option_takes_values_of_its_types_and_rejects_others() {
        use OptionValue::{Absent, Integer, Other, Switch, Text, Tokens};
        let text = |text: &str| Text(text.to_owned());
        for (value, is_off) in [
            (Switch(true), Some(true)),
            (Switch(false), Some(false)),
            (Integer(1), Some(true)),
            (Integer(0), Some(false)),
            (Integer(2), None),
            (Integer(-1), None),
            (text("True"), Some(true)),
            (text("1"), Some(true)),
            (text("FALSE"), Some(false)),
            (text(""), Some(false)),
            (text("none"), None),
            (text("null"), None),
            (Other, None),
            (Tokens(vec![1]), None),
        ] {
            let options = read("off", value.clone());
            let found = options.unreadable.is_empty().then_some(options.is_off);
            assert_eq!(found, is_off, "{value:?}");
            let options = read("penalized", value.clone());
            let found = options.unreadable.is_empty().then_some(options.is_penalized);
            assert_eq!(found, is_off, "{value:?}");
        }
        for (value, name) in [
            (text("ann"), Some("ann")),
            (text(""), Some("")),
            (Integer(-7), Some("-7")),
            (Switch(true), None),
            (Other, None),
            (Tokens(vec![]), None),
        ] {
            let (of_tenant, of_group) = (read("tenant", value.clone()), read("group", value));
            let is_read = name.is_some();
            assert_eq!(of_tenant.tenant, name.unwrap_or_default());
            assert_eq!(of_group.group.as_deref(), name);
            assert_eq!(
                [of_tenant.unreadable.is_empty(), of_group.unreadable.is_empty()],
                [is_read; 2]
            );
        }
        assert_eq!(read("predicted_output", Tokens(vec![3, 1])).predicted_output, [3, 1]);
        for value in [text("a"), Integer(1), Other] {
            let options = read("predicted_output", value);
            assert_eq!(options.unreadable, ["`predicted_output` must be a list of token ids"]);
        }
        for name in ["off", "penalized", "tenant", "group", "predicted_output"] {
            assert_eq!(read(name, Absent), RequestOptions::default());
        }
        assert_eq!(read("tenat", text("ann")).unreadable, ["`tenat` is unknown"]);
    }
}
