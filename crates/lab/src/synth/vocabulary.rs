//! A vocabulary that can express every text: byte-level BPE with a few merges, the tokens of ChatML, and as many tokens
//! that are never used as the model's embedding has further rows.

use verbatim_gguf::{GgufError, GgufWriter};

/// Pairs that are merged, the most urgent first: beginnings of English words, in the notation of GPT-2 for a space.
const MERGES: [(&str, &str); 24] = [
    ("Ġ", "t"),
    ("h", "e"),
    ("i", "n"),
    ("Ġ", "a"),
    ("r", "e"),
    ("o", "n"),
    ("Ġt", "he"),
    ("e", "r"),
    ("Ġ", "s"),
    ("a", "t"),
    ("Ġ", "o"),
    ("o", "r"),
    ("n", "d"),
    ("Ġ", "w"),
    ("i", "s"),
    ("e", "n"),
    ("in", "g"),
    ("Ġa", "nd"),
    ("o", "u"),
    ("Ġ", "i"),
    ("Ġ", "b"),
    ("Ġo", "f"),
    ("e", "s"),
    ("l", "l"),
];

const END_OF_TEXT: &str = "<|endoftext|>";
const START_OF_TURN: &str = "<|im_start|>";
const END_OF_TURN: &str = "<|im_end|>";

/// ChatML: each message between its role and an end of turn.
const CHAT_TEMPLATE: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
    {% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// `tokenizer.ggml.token_type`: text, structure, never used.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

/// Minimum size of a vocabulary.
pub(super) fn min_tokens() -> usize {
    256 + MERGES.len() + 3
}

/// Writes a vocabulary of `tokens` tokens, at least [`min_tokens`].
pub(super) fn put(writer: &mut GgufWriter, count: usize) -> Result<(), GgufError> {
    let mut tokens: Vec<String> = bytes().map(String::from).collect();
    tokens.extend(MERGES.map(|(left, right)| format!("{left}{right}")));
    let mut types = vec![NORMAL; tokens.len()];
    let end_of_text = tokens.len() as u32;
    let end_of_turn = end_of_text + 2;
    tokens.extend([END_OF_TEXT, START_OF_TURN, END_OF_TURN].map(str::to_owned));
    types.extend([CONTROL; 3]);
    tokens.extend((tokens.len()..count).map(|id| format!("<|unused{id}|>")));
    types.resize(tokens.len(), UNUSED);
    let merges = MERGES.map(|(left, right)| format!("{left} {right}"));

    writer.put("tokenizer.ggml.model", "gpt2")?;
    writer.put("tokenizer.ggml.pre", "qwen2")?;
    writer.put_array("tokenizer.ggml.tokens", &tokens)?;
    writer.put_array("tokenizer.ggml.token_type", &types)?;
    writer.put_array("tokenizer.ggml.merges", &merges)?;
    writer.put("tokenizer.ggml.eos_token_id", end_of_turn)?;
    writer.put("tokenizer.ggml.padding_token_id", end_of_text)?;
    writer.put("tokenizer.ggml.add_bos_token", false)?;
    writer.put("tokenizer.chat_template", CHAT_TEMPLATE)
}

/// The 256 bytes as GPT-2 writes them: those that are not printable Latin-1 become the characters from U+0100
/// on, in their order.
fn bytes() -> impl Iterator<Item = char> {
    let mut others = 0x100u32..;
    (0..=255u8).map(move |byte| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => others.next().and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER),
    })
}
