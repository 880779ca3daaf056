//! The field `budget` of requests: how much may be kept, in one of four forms.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use thresher_core::domain::Budget;

use crate::error::{ApiError, ErrorCode};

/// How much may be kept, in one of four forms.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BudgetBody {
    tokens: Option<usize>,
    ratio: Option<f64>,
    auto: Option<bool>,
    coverage: Option<f64>,
}

impl BudgetBody {
    /// The budget.
    ///
    /// # Errors
    /// `fields_conflict`, if none or several of the forms are given.
    pub(super) fn into_domain(self) -> Result<Budget, ApiError> {
        match (self.tokens, self.ratio, self.auto, self.coverage) {
            (Some(tokens), None, None, None) => Ok(Budget::Tokens(tokens)),
            (None, Some(ratio), None, None) => Ok(Budget::Ratio(ratio)),
            (None, None, Some(true), None) => Ok(Budget::Auto),
            (None, None, None, Some(coverage)) => Ok(Budget::Coverage(coverage)),
            _ => {
                let message = "budget takes exactly one of \"tokens\": N, \"ratio\": R, \"coverage\": P and \"auto\": true";
                Err(ApiError::with_param(ErrorCode::FieldsConflict, message, "budget"))
            }
        }
    }
}

impl JsonSchema for BudgetBody {
    fn schema_name() -> Cow<'static, str> {
        "Budget".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let forms = [
            generator.subschema_for::<Form<0>>(),
            generator.subschema_for::<Form<1>>(),
            generator.subschema_for::<Form<2>>(),
            generator.subschema_for::<Form<3>>(),
        ];
        json_schema!({"description": "How much may be kept, in one of four forms.", "oneOf": forms})
    }
}

/// The fields of a budget, each with the name, the description and the schema of its form.
const FORMS: [(&str, &str, &str); 4] = [
    ("tokens", "TokenBudget", "At most this many tokens of context."),
    ("ratio", "RatioBudget", "At most this share of the tokens of the input."),
    ("auto", "AutoBudget", "As much as the scores support."),
    ("coverage", "CoverageBudget", "As little as holds the needed evidence with at least this probability."),
];

/// The schema of the form at `N` in [`FORMS`]. Each form has a type of its own in programs that are generated from the schema.
struct Form<const N: usize>;

impl<const N: usize> JsonSchema for Form<N> {
    fn schema_name() -> Cow<'static, str> {
        FORMS[N].1.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let (field, name, description) = FORMS[N];
        let mut value = match field {
            "tokens" => json!({"type": "integer", "minimum": 1, "format": "uint"}),
            "ratio" => json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
            "auto" => json!({"type": "boolean", "const": true}),
            _ => json!({"type": "number", "minimum": 0.5, "maximum": 0.99}),
        };
        value["description"] = description.into();
        // Null is as good as missing.
        let of = |(other, ..): &(&str, &str, &str)| {
            let schema = if *other == field { value.clone() } else { json!({"type": "null"}) };
            ((*other).to_owned(), schema)
        };
        let properties: Map<String, Value> = FORMS.iter().map(of).collect();
        json_schema!({
            "type": "object",
            "title": name,
            "description": description,
            "properties": properties,
            "required": [field],
            "additionalProperties": false,
        })
    }
}
