//! Splits text into the pre-tokens that byte-level BPE then merges, by the rules that `tokenizer.ggml.pre` names.
//!
//! The rules come from the models' own `tokenizer.json` files, as collected in llama.cpp's `llama-vocab.cpp`. Almost
//! all end in `\s+(?!\S)|\s+`: a run of whitespace is a pre-token, without its last character if a pre-token follows it. The
//! look-ahead is done by hand here ([`PreTokenizer::split`]), so that the rest is a regular language and the search is
//! linear in the text: there is no backtracking, hence no limit to run into.

use crate::error::TokenizerError;
use regex_automata::{Input, meta::Regex};
use std::borrow::Cow;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// Contractions are split off in ASCII letters of either case only, as llama.cpp does.
macro_rules! contractions {
    () => {
        "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
    };
}
/// A capitalised or lower-case word, with at most one different character in front.
macro_rules! lower_word {
    () => {
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    };
}
/// An upper-case word, perhaps with a lower-case end.
macro_rules! upper_word {
    () => {
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    };
}

/// One pass over the text. Matches become pre-tokens, and so do the gaps between them.
struct Pass {
    pattern: &'static str,
    /// Whether a run of whitespace that `pattern` does not match is its own pre-token; see the module documentation.
    whitespace: bool,
}

const fn words(pattern: &'static str) -> Pass {
    Pass { pattern, whitespace: true }
}

const fn without_whitespace_rule(pattern: &'static str) -> Pass {
    Pass { pattern, whitespace: false }
}

const GPT2: Pass = words(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+");
const DIGIT: Pass = without_whitespace_rule(r"\p{N}");
const UP_TO_THREE_DIGITS: Pass = without_whitespace_rule(r"\p{N}{1,3}");
const THREE_ASCII_DIGITS: Pass = without_whitespace_rule("[0-9][0-9][0-9]");
const LLAMA3: Pass = words(concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
));
const QWEN2: Pass =
    words(concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"));
const QWEN35: Pass = words(concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
));
const BAILING: Pass =
    words(concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]"));
const SEED: Pass =
    words(concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"));
/// llama.cpp approximates the letter classes of Tekken and GPT-4o by ASCII case; these are the originals.
const TEKKEN: Pass =
    words(concat!(lower_word!(), "|", upper_word!(), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"));
const GPT4O: Pass = words(concat!(
    lower_word!(),
    "(?:",
    contractions!(),
    ")?|",
    upper_word!(),
    "(?:",
    contractions!(),
    r")?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
));
const DEEPSEEK3: Pass = words(concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
));
const HAN_AND_KANA: Pass = without_whitespace_rule("[一-龥\u{3040}-ゟ゠-ヿ]+");
const HAN_TO_HANGUL: Pass = without_whitespace_rule("[一-龥\u{800}-一가-\u{D7FF}]+");
const LINE_BREAK: Pass = without_whitespace_rule(r"[\r\n]");
/// Letters with case, of the Unicode version of DeepSeek's tokenizer.
const DEEPSEEK_LETTERS: Pass = without_whitespace_rule(concat!(
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ",
    "Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u{1F7D}ᾀ-ᾴᾶ-ᾼ\u{1FBE}ῂ-ῄῆ-ῌῐ-\u{1FD3}ῖ-\u{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ\u{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄ",
    "Ⰰ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
));
const DEEPSEEK_SYMBOLS: Pass = without_whitespace_rule(r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+");

/// The rules of one family of pre-tokenizers.
struct Scheme {
    /// The values of `tokenizer.ggml.pre` that select it.
    names: &'static [&'static str],
    /// Applied one after another, each to the pre-tokens of the previous one.
    passes: &'static [Pass],
    /// A pre-token that is in the vocabulary is one token, without applying merges (`ignore_merges` in tokenizer.json).
    ignore_merges: bool,
    /// Whether BOS is prepended to a text when `tokenizer.ggml.add_bos_token` is absent.
    add_bos: bool,
}

const fn scheme(names: &'static [&'static str], passes: &'static [Pass]) -> Scheme {
    Scheme { names, passes, ignore_merges: false, add_bos: false }
}

const SCHEMES: &[Scheme] = &[
    scheme(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "modern-bert",
        ],
        &[GPT2],
    ),
    Scheme {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        passes: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    scheme(&["smaug-bpe", "dbrx", "glm4", "chatglm-bpe"], &[LLAMA3]),
    scheme(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
            "kormo",
            "f2llmv2",
        ],
        &[QWEN2],
    ),
    scheme(&["qwen35"], &[QWEN35]),
    scheme(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[DIGIT, GPT2],
    ),
    scheme(
        &["deepseek-llm"],
        &[
            LINE_BREAK,
            DEEPSEEK_LETTERS,
            DEEPSEEK_SYMBOLS,
            without_whitespace_rule(r"\s+$"),
            HAN_TO_HANGUL,
            without_whitespace_rule(r"\p{N}+"),
        ],
    ),
    scheme(
        &["deepseek-coder"],
        &[
            LINE_BREAK,
            without_whitespace_rule(r"\s?\p{L}+"),
            without_whitespace_rule(r"\s?\p{P}+"),
            HAN_TO_HANGUL,
            DIGIT,
        ],
    ),
    scheme(&["deepseek-v3", "hunyuan-dense", "joyai-llm"], &[UP_TO_THREE_DIGITS, HAN_AND_KANA, DEEPSEEK3]),
    scheme(&["falcon"], &[without_whitespace_rule(r"[\p{P}$+<=>^~|`]+"), GPT2, THREE_ASCII_DIGITS]),
    Scheme { names: &["tekken"], passes: &[TEKKEN], ignore_merges: true, add_bos: true },
    scheme(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O]),
    scheme(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]),
    scheme(&["seed-coder"], &[SEED]),
    scheme(
        &["default"],
        &[
            without_whitespace_rule(r"[\p{P}$+<=>^~|]+"),
            GPT2,
            without_whitespace_rule(r"\p{N}+"),
            THREE_ASCII_DIGITS,
        ],
    ),
];

/// The pre-tokenizers that compose Unicode first: the models' `tokenizer.json` have an NFC normalizer, which llama.cpp
/// leaves out. They are those of Qwen and of GPT-NeoX (MPT, OLMo and ModernBERT have its tokenizer). Without it, decomposed
/// text, such as macOS writes in file names, becomes tokens that the models have hardly seen.
const COMPOSES: &[&str] = &["qwen2", "qwen35", "deepseek-r1-qwen", "mpt", "olmo", "modern-bert"];

/// Splits text into pre-tokens.
pub(crate) struct PreTokenizer {
    scheme: &'static Scheme,
    passes: Vec<CompiledPass>,
    composes: bool,
}

impl PreTokenizer {
    /// The pre-tokenizer that `tokenizer.ggml.pre` calls `name`.
    pub fn named(name: &str) -> Result<Self, TokenizerError> {
        let scheme = SCHEMES.iter().find(|scheme| scheme.names.contains(&name)).ok_or_else(|| {
            let known: Vec<&str> = SCHEMES.iter().flat_map(|scheme| scheme.names).copied().collect();
            TokenizerError::UnknownPreTokenizer {
                name: crate::error::excerpt(name.as_bytes()),
                known: known.join(", "),
            }
        })?;
        let passes = scheme.passes.iter().map(CompiledPass::new).collect::<Result<_, _>>()?;
        Ok(Self { scheme, passes, composes: COMPOSES.contains(&name) })
    }

    /// Whether a pre-token that is in the vocabulary is one token, without applying merges.
    pub fn ignore_merges(&self) -> bool {
        self.scheme.ignore_merges
    }

    /// Whether BOS is prepended when the file does not specify it.
    pub fn adds_bos(&self) -> bool {
        self.scheme.add_bos
    }

    /// `text` as the rules expect it: composed (NFC) where the model's own tokenizer does that.
    pub fn normalize<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !self.composes || is_nfc_quick(text.chars()) == IsNormalized::Yes {
            return Cow::Borrowed(text);
        }
        Cow::Owned(text.nfc().collect())
    }

    /// Calls `each` with the pre-tokens of `text` in order; joined, they are `text`.
    pub fn split<'t>(&self, text: &'t str, each: &mut dyn FnMut(&'t str)) {
        split_by(&self.passes, text, each);
    }
}

fn split_by<'t>(passes: &[CompiledPass], text: &'t str, each: &mut dyn FnMut(&'t str)) {
    match passes.split_first() {
        Some((pass, later)) => pass.split(text, &mut |word| split_by(later, word, each)),
        None if text.is_empty() => {}
        None => each(text),
    }
}

struct CompiledPass {
    regex: Regex,
}

/// The number of the pattern for whitespace runs in a [`CompiledPass`] that has one.
const WHITESPACE_RUN: usize = 1;

impl CompiledPass {
    fn new(pass: &Pass) -> Result<Self, TokenizerError> {
        let whitespace = pass.whitespace.then_some(r"\s+");
        let patterns: Vec<&str> = std::iter::once(pass.pattern).chain(whitespace).collect();
        let regex = Regex::new_many(&patterns)
            .map_err(|error| TokenizerError::Build { what: "pre-tokenizer", reason: error.to_string() })?;
        Ok(Self { regex })
    }

    fn split<'t>(&self, text: &'t str, each: &mut dyn FnMut(&'t str)) {
        let mut position = 0;
        while let Some(found) = self.regex.search(&Input::new(text).range(position..)) {
            let mut end = found.end();
            if found.pattern().as_usize() == WHITESPACE_RUN && end < text.len() {
                end = without_last_of_several(&text[found.range()]).map_or(end, |len| found.start() + len);
            }
            each(&text[position..found.start()]);
            each(&text[found.start()..end]);
            position = end;
        }
        each(&text[position..]);
    }
}

/// The length of `run` without its last character, if it has more than one.
fn without_last_of_several(run: &str) -> Option<usize> {
    run.char_indices().next_back().map(|(start, _)| start).filter(|&start| start > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(name: &str, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        PreTokenizer::named(name).unwrap().split(text, &mut |word| words.push(word.to_owned()));
        words
    }

    /// Writes the expected pre-tokens as one string, separated by `|`.
    #[track_caller]
    fn assert_split(name: &str, text: &str, expected: &str) {
        assert_eq!(split(name, text), expected.split('|').collect::<Vec<_>>(), "{name}: {text:?}");
    }

    #[test]
    fn every_scheme_compiles_and_every_name_is_unique() {
        let names: Vec<&str> = SCHEMES.iter().flat_map(|scheme| scheme.names).copied().collect();
        for name in &names {
            assert_eq!(split(name, "Hi 12\n\n x!").concat(), "Hi 12\n\n x!");
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
    }

    #[test]
    fn an_unknown_name_is_rejected_with_the_list_of_known_ones() {
        let Err(error) = PreTokenizer::named("klingon") else { panic!("accepted") };
        let message = error.to_string();
        assert!(message.contains("`klingon`") && message.contains("llama-bpe") && message.contains("qwen35"));
    }

    #[test]
    fn gpt2_keeps_the_last_space_for_the_next_word() {
        assert_split("gpt-2", "Hello  world", "Hello| | world");
        assert_split("gpt-2", "a \n b  ", "a| \n| b|  ");
        assert_split("gpt-2", "don't DON'T 1234", "don|'t| DON|'|T| 1234");
        assert_split("gpt-2", "x\ty", "x|\t|y");
    }

    #[test]
    fn llama3_groups_digits_by_three_and_line_breaks_with_the_space_before() {
        assert_split("llama-bpe", "12345 DON'T", "123|45| DON|'T");
        assert_split("llama3", "a \n\n  b", "a| \n\n| | b");
        assert_split("llama-v3", "f(x);\n\ny", "f|(x|);\n\n|y");
    }

    #[test]
    fn qwen2_takes_single_digits_and_qwen35_keeps_marks_with_letters() {
        assert_split("qwen2", "12 ab", "1|2| ab");
        // KA, vowel sign AA: the sign is a mark, not a letter.
        assert_split("qwen2", "क\u{93E} ", "क|\u{93E}| ");
        assert_split("qwen35", "क\u{93E} ", "क\u{93E}| ");
    }

    #[test]
    fn qwen_composes_unicode_and_others_leave_it() {
        let normalize = |name, text: &str| PreTokenizer::named(name).unwrap().normalize(text).into_owned();
        assert_eq!(normalize("qwen2", "e\u{301}, \u{1112}\u{1161}\u{11ab}"), "é, 한");
        assert_eq!(normalize("qwen35", "e\u{301}"), "é");
        assert_eq!(normalize("llama-bpe", "e\u{301}"), "e\u{301}");
        for name in COMPOSES {
            assert!(PreTokenizer::named(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn smollm_and_its_kin_take_digits_before_anything_else() {
        for name in ["smollm", "starcoder", "refact", "command-r"] {
            assert_split(name, "ab 12c's", "ab| |1|2|c|'s");
        }
    }

    #[test]
    fn deepseek_splits_lines_scripts_and_numbers_in_turn() {
        assert_split("deepseek-llm", "Hi, you\n12 中文!", "Hi|,| you|\n|12| |中文|!");
        assert_split("deepseek-coder", "Hi, 12 中文", "Hi|,| |1|2| |中文");
        assert_split("deepseek-v3", "x=1234 (a) 中文かな é\n", "x|=|123|4| (|a|)| |中文かな| é|\n");
    }

    #[test]
    fn falcon_splits_punctuation_first_and_digits_by_three() {
        assert_split("falcon", "a+b== 1234567", "a|+|b|==| |123|456|7");
        assert_split("default", "a+b 1234", "a|+|b| |123|4");
    }

    #[test]
    fn tekken_and_gpt4o_split_at_case_changes() {
        assert_split("tekken", "camelCase HTTPServer 12", "camel|Case| HTTPServer| |1|2");
        assert_split("gpt-4o", "camelCase don't 1234/\n", "camel|Case| don't| |123|4|/\n");
        assert_split("gpt-4o", "ÉCOLEélan", "ÉCOLEélan");
        assert_split("gpt-4o", "élanÉcole", "élan|École");
    }

    #[test]
    fn minor_families_differ_in_line_breaks_and_punctuation() {
        assert_split("bailingmoe", "a\n\nb!\n", "a|\n\n|b|!\n");
        assert_split("seed-coder", "a!\nb", "a|!|\n|b");
        assert_split("qwen2", "a!\nb", "a|!\n|b");
    }
}
