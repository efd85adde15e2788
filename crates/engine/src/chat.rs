//! Chat messages, and how a model wants them written: its template and its tokenizer.

use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::{Arc, OnceLock};
use verbatim_text::{ChatTemplate, SpecialTokens, TemplateError, Tokenizer};

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions before the conversation.
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
}

/// One message, in the form that chat templates take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// The text.
    pub content: String,
}

/// Why a conversation has no tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// The model does not say how to write conversations.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The template is broken, or refuses this conversation.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// How texts and conversations become tokens of a model.
#[derive(Debug)]
pub struct ChatFormat {
    tokenizer: Arc<Tokenizer>,
    source: Option<String>,
    /// Compiled when it is first used: until then a broken template does no harm.
    template: OnceLock<Result<ChatTemplate, TemplateError>>,
}

impl ChatFormat {
    /// The format of a model with this tokenizer and the source of this template, if it has one.
    pub fn new(tokenizer: Arc<Tokenizer>, template: Option<String>) -> ChatFormat {
        ChatFormat { tokenizer, source: template, template: OnceLock::new() }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Whether the model says how to write a conversation. Whether what it says is right shows when it is used.
    pub fn has_template(&self) -> bool {
        self.source.is_some()
    }

    /// The tokens of a text that is to be continued as it is.
    pub fn text_tokens(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, SpecialTokens::Parse, true)
    }

    /// The tokens of a conversation that the assistant is to continue.
    ///
    /// # Errors
    /// If the model has no chat template, or it is broken or refuses the conversation.
    pub fn chat_tokens(&self, messages: &[Message]) -> Result<Vec<u32>, ChatError> {
        let source = self.source.as_ref().ok_or(ChatError::NoTemplate)?;
        let template =
            self.template.get_or_init(|| ChatTemplate::new(source)).as_ref().map_err(Clone::clone)?;
        let mut context = json!({ "messages": messages, "add_generation_prompt": true, "tools": null });
        for (name, id) in [("bos_token", self.tokenizer.bos()), ("eos_token", self.tokenizer.eos())] {
            if let Some(id) = id {
                context[name] = String::from_utf8_lossy(self.tokenizer.piece(id)).into();
            }
        }
        // The template writes the special tokens itself, the first one included.
        Ok(self.tokenizer.encode(&template.render(&context)?, SpecialTokens::Parse, false))
    }
}
