//! A tokenizer's model: one of the library's, or ours.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tokenizers::models::TrainerWrapper;
use tokenizers::{Model, ModelWrapper, Result, Token};

use super::unigram::Unigram;

/// What divides a word into tokens.
#[derive(Debug, Clone)]
pub enum AnyModel {
    Library(ModelWrapper),
    Unigram(Unigram),
}

impl Model for AnyModel {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, text: &str) -> Result<Vec<Token>> {
        match self {
            Self::Library(model) => model.tokenize(text),
            Self::Unigram(model) => model.tokenize(text),
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            Self::Library(model) => model.token_to_id(token),
            Self::Unigram(model) => model.token_to_id(token),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            Self::Library(model) => model.id_to_token(id),
            Self::Unigram(model) => model.id_to_token(id),
        }
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        match self {
            Self::Library(model) => model.get_vocab(),
            Self::Unigram(model) => model.get_vocab(),
        }
    }

    fn get_vocab_size(&self) -> usize {
        match self {
            Self::Library(model) => model.get_vocab_size(),
            Self::Unigram(model) => model.get_vocab_size(),
        }
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> Result<Vec<PathBuf>> {
        match self {
            Self::Library(model) => model.save(folder, prefix),
            Self::Unigram(model) => model.save(folder, prefix),
        }
    }

    fn get_trainer(&self) -> TrainerWrapper {
        match self {
            Self::Library(model) => model.get_trainer(),
            Self::Unigram(model) => model.get_trainer().into(),
        }
    }
}
