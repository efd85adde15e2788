//! How a model wants conversations written: its template and its tokenizer.

use crate::breakers::sequence_breakers;
use crate::message::Message;
use serde_json::{Map, Value, json};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use verbatim_grammar::{CompiledGrammar, Constraint, Grammar, GrammarError, Vocabulary, VocabularyError};
use verbatim_sample::{SamplerKind, Sampling, SequenceBreakers};
use verbatim_text::{ChatTemplate, EncodedPrompt, SpecialTokens, TemplateError, Tokenizer};

/// A conversation with all that APIs have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    /// The messages, in the form of OpenAI's API. They are shaped as the template takes them.
    pub messages: Vec<Value>,
    /// Definitions of tools, in the same form; `Null`: none.
    pub tools: Value,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: Map<String, Value>,
    /// How the answer begins.
    pub prefill: String,
}

impl From<&[Message]> for Conversation {
    fn from(messages: &[Message]) -> Conversation {
        let messages = messages.iter().map(|message| json!(message)).collect();
        Conversation { messages, ..Conversation::default() }
    }
}

/// Why a conversation cannot be formatted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// The model has no chat template.
    #[error("the model has no chat template")]
    NoTemplate,
    /// The template is invalid or rejects this conversation.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// Converts texts and conversations to tokens of a model.
#[derive(Debug)]
pub struct ChatFormat {
    tokenizer: Arc<Tokenizer>,
    source: Option<String>,
    /// Compiled on first use: an invalid template only affects conversations.
    template: OnceLock<Result<ChatTemplate, TemplateError>>,
    /// DRY's sequence breakers: texts and their tokens, of the last request that used them.
    breakers: Mutex<Option<(Vec<String>, Arc<SequenceBreakers>)>>,
    /// Prepared for the first grammar.
    vocabulary: OnceLock<Result<Vocabulary, VocabularyError>>,
    /// The last grammar that was compiled.
    grammar: Mutex<Option<(Grammar, CompiledGrammar)>>,
}

impl ChatFormat {
    /// The format of a model with this tokenizer and the source of its chat template, if it has one.
    pub fn new(tokenizer: Arc<Tokenizer>, template: Option<String>) -> ChatFormat {
        ChatFormat {
            tokenizer,
            source: template,
            template: OnceLock::new(),
            breakers: Mutex::default(),
            vocabulary: OnceLock::new(),
            grammar: Mutex::default(),
        }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Whether the model has a chat template. The template is not validated until it is used.
    pub fn has_template(&self) -> bool {
        self.source.is_some()
    }

    /// The tokens of DRY's sequence breakers; none if DRY is off.
    pub(crate) fn breakers(&self, sampling: &Sampling) -> Arc<SequenceBreakers> {
        if !sampling.is_on(SamplerKind::Dry) {
            return Arc::default();
        }
        let texts = &sampling.dry_sequence_breakers;
        let mut last = self.breakers.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((known, breakers)) if known == texts => Arc::clone(breakers),
            _ => {
                let breakers = Arc::new(sequence_breakers(&self.tokenizer, texts));
                *last = Some((texts.clone(), Arc::clone(&breakers)));
                breakers
            }
        }
    }

    /// The start of a grammar. The grammar of the last request is not compiled again.
    pub(crate) fn constraint(&self, grammar: Grammar) -> Result<Constraint, GrammarError> {
        let vocabulary = self.vocabulary.get_or_init(|| Vocabulary::new(Arc::clone(&self.tokenizer)));
        let vocabulary = vocabulary.as_ref().map_err(Clone::clone)?;
        let mut last = self.grammar.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|(known, _)| *known != grammar) {
            let compiled = grammar.compile(vocabulary)?;
            *last = Some((grammar, compiled));
        }
        Ok(last.as_ref().expect("compiled above").1.constraint())
    }

    /// The tokens of a plain text to continue, with BOS prepended where the model wants it and without EOS, and a warning if
    /// the text has its own BOS. With [`SpecialTokens::Ignore`] none of it becomes a control token.
    pub fn text_tokens(&self, text: &str, special: SpecialTokens) -> EncodedPrompt {
        self.tokenizer.encode_prompt(text, special)
    }

    /// The tokens of a conversation for the assistant to continue, as [`Self::conversation_tokens`].
    ///
    /// # Errors
    /// As [`Self::conversation_tokens`].
    pub fn chat_tokens(&self, messages: &[Message]) -> Result<Vec<u32>, ChatError> {
        self.conversation_tokens(&messages.into())
    }

    /// The tokens of a conversation for the assistant to continue. Control tokens come from the template alone: what messages, tools
    /// and variables say is text. BOS is prepended where the model wants it and the template leaves it out.
    ///
    /// # Errors
    /// If the model has no chat template, or the template is invalid or rejects the conversation.
    pub fn conversation_tokens(&self, conversation: &Conversation) -> Result<Vec<u32>, ChatError> {
        let prompt = self.render(conversation, &|value| self.tokenizer.guard_json(value))?;
        Ok(self.tokenizer.encode_prompt(&prompt, SpecialTokens::ParseUnguarded).ids)
    }

    /// The text that the template makes of messages, as [`Self::conversation_text`].
    ///
    /// # Errors
    /// As [`Self::conversation_tokens`].
    pub fn chat_text(&self, messages: &[Message]) -> Result<String, ChatError> {
        self.conversation_text(&messages.into())
    }

    /// The text that the template makes of a conversation.
    ///
    /// # Errors
    /// As [`Self::conversation_tokens`].
    pub fn conversation_text(&self, conversation: &Conversation) -> Result<String, ChatError> {
        self.render(conversation, &|_| {})
    }

    fn render(&self, conversation: &Conversation, guard: &dyn Fn(&mut Value)) -> Result<String, ChatError> {
        let template = self.template()?;
        let Conversation { messages, tools, variables, prefill } = conversation;
        let mut context = json!({ "messages": messages, "add_generation_prompt": true, "tools": tools });
        template.shape_messages(&mut context["messages"])?;
        let mut texts = json!([variables, prefill]);
        // After the shaping, which parses arguments that are JSON text: they may spell a control token with escapes.
        guard(&mut context);
        guard(&mut texts);
        for (name, id) in [("bos_token", self.tokenizer.bos()), ("eos_token", self.tokenizer.eos())] {
            if let Some(id) = id {
                context[name] = String::from_utf8_lossy(self.tokenizer.piece(id)).into();
            }
        }
        for (name, value) in texts[0].as_object().into_iter().flatten() {
            context[name] = value.clone();
        }
        Ok(template.render(&context)? + texts[1].as_str().unwrap_or_default())
    }

    /// The compiled template.
    ///
    /// # Errors
    /// If the model has no chat template, or it is invalid.
    pub fn template(&self) -> Result<&ChatTemplate, ChatError> {
        let source = self.source.as_ref().ok_or(ChatError::NoTemplate)?;
        let template = self.template.get_or_init(|| ChatTemplate::new(source));
        Ok(template.as_ref().map_err(Clone::clone)?)
    }

    /// The source of the chat template, if the model has one.
    pub fn template_source(&self) -> Option<&str> {
        self.source.as_deref()
    }
}
