//! The kinds of texts.

use schemars::JsonSchema;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::{Deserialize, Serialize};

/// What a text is, which decides how it is divided into units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The kind is found out from the text.
    #[default]
    Auto,
    /// Running text, which is divided into sentences.
    Prose,
    /// Headings, lists, tables and fenced code.
    Markdown,
    /// A program, or a configuration file that is divided by its indentation or its sections.
    Code,
    /// JSON values, one or many.
    Json,
    /// Rows of cells: Markdown, comma- or tab-separated, or in columns of a fixed width.
    Table,
    /// Events, each on one or several lines.
    Log,
    /// Turns of several speakers.
    Chat,
    /// A page of the web or a part of one.
    Html,
    /// A page as programs extract it from a PDF, with tables whose cells stand one a line.
    Pdf,
    /// A mail, with what it quotes.
    Mail,
    /// Subtitles with their times (SRT, WebVTT).
    Subtitles,
}

impl Kind {
    /// Returns whether the kind is found out from the text.
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }

    /// Returns whether the text has sentences that depend on other sentences.
    pub fn is_running_text(self) -> bool {
        matches!(self, Self::Prose | Self::Markdown | Self::Pdf | Self::Mail)
    }

    /// Returns the name of the kind in requests and answers, such as `prose`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Prose => "prose",
            Self::Markdown => "markdown",
            Self::Code => "code",
            Self::Json => "json",
            Self::Table => "table",
            Self::Log => "log",
            Self::Chat => "chat",
            Self::Html => "html",
            Self::Pdf => "pdf",
            Self::Mail => "mail",
            Self::Subtitles => "subtitles",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        let name: StrDeserializer<ValueError> = name.into_deserializer();
        Self::deserialize(name).ok()
    }
}
