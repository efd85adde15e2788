//! Chat templates by name, for models whose file has none or a wrong one. Each is the format that its models were trained with.

use std::path::Path;

use crate::error::UsageError;
use crate::flags::ChatTemplateFlags;
use crate::standard_io::read_text_file;

#[rustfmt::skip]
const TEMPLATES: &[(&str, &str)] = &[
    ("chatml", "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"),
    ("llama2", "{{ bos_token }}{% for m in messages %}\
        {% if m.role == 'system' %}{{ '[INST] <<SYS>>\n' + m.content + '\n<</SYS>>\n\n' }}\
        {% elif m.role == 'user' %}\
        {% if loop.first or messages[loop.index0 - 1].role != 'system' %}{{ '[INST] ' }}{% endif %}{{ m.content + ' [/INST]' }}\
        {% else %}{{ ' ' + m.content + ' ' + eos_token }}{{ bos_token if not loop.last }}{% endif %}{% endfor %}"),
    ("llama3", "{{ bos_token }}{% for m in messages %}\
        {{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"),
    ("gemma", "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}\
        {% if m.role == 'system' %}{% set ns.system = m.content | trim + '\n\n' %}{% else %}\
        {{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}\
        {% if m.role == 'user' %}{{ ns.system }}{% set ns.system = '' %}{% endif %}\
        {{ m.content | trim + '<end_of_turn>\n' }}{% endif %}{% endfor %}\
        {% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"),
    ("mistral", "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}\
        {% if m.role == 'system' %}{% set ns.system = m.content + '\n\n' %}\
        {% elif m.role == 'user' %}{{ '[INST] ' + ns.system + m.content + '[/INST]' }}{% set ns.system = '' %}\
        {% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"),
    ("phi3", "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"),
    ("zephyr", "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"),
    ("vicuna", "{% for m in messages %}\
        {% if m.role == 'system' %}{{ m.content + '\n\n' }}\
        {% elif m.role == 'user' %}{{ 'USER: ' + m.content + '\n' }}\
        {% else %}{{ 'ASSISTANT: ' + m.content + eos_token + '\n' }}{% endif %}{% endfor %}\
        {% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"),
];

/// The source of the template that the flags ask for, if they do.
///
/// # Errors
/// When it is neither a name, nor a file that can be read, nor Jinja.
pub fn chosen(flags: &ChatTemplateFlags) -> anyhow::Result<Option<String>> {
    if let Some(path) = &flags.chat_template_file {
        return read_text_file(path).map(Some);
    }
    let Some(text) = &flags.chat_template else { return Ok(None) };
    if let Some((_, source)) = TEMPLATES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text.trim())) {
        return Ok(Some((*source).to_owned()));
    }
    if text.contains("{%") || text.contains("{{") {
        return Ok(Some(text.clone()));
    }
    if Path::new(text).is_file() {
        return read_text_file(Path::new(text)).map(Some);
    }
    let names = TEMPLATES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    Err(UsageError(format!(
        "--chat-template {text}: this is not a file, not a Jinja template and not one of {names}"
    ))
    .into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use verbatim_text::ChatTemplate;

    use super::*;

    fn rendered(name: &str, system: bool) -> String {
        let flags = ChatTemplateFlags { chat_template: Some(name.to_uppercase()), chat_template_file: None };
        let template = ChatTemplate::new(&chosen(&flags).unwrap().unwrap()).unwrap();
        let mut messages = vec![
            json!({"role": "user", "content": "a"}),
            json!({"role": "assistant", "content": "b"}),
            json!({"role": "user", "content": "c"}),
        ];
        if system {
            messages.insert(0, json!({"role": "system", "content": "§"}));
        }
        let context = json!({"messages": messages, "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"});
        template.render(&context).unwrap()
    }

    #[test]
    fn every_template_writes_what_its_models_expect() {
        for (name, expected) in [
            (
                "chatml",
                "<|im_start|>system\n§<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n\
                <|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n",
            ),
            ("llama2", "<s>[INST] <<SYS>>\n§\n<</SYS>>\n\na [/INST] b </s><s>[INST] c [/INST]"),
            (
                "llama3",
                "<s><|start_header_id|>system<|end_header_id|>\n\n§<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n\
                a<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n\
                c<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            (
                "gemma",
                "<s><start_of_turn>user\n§\n\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n\
                <start_of_turn>user\nc<end_of_turn>\n<start_of_turn>model\n",
            ),
            ("mistral", "<s>[INST] §\n\na[/INST] b</s>[INST] c[/INST]"),
            (
                "phi3",
                "<|system|>\n§<|end|>\n<|user|>\na<|end|>\n<|assistant|>\nb<|end|>\n<|user|>\nc<|end|>\n<|assistant|>\n",
            ),
            (
                "zephyr",
                "<|system|>\n§</s>\n<|user|>\na</s>\n<|assistant|>\nb</s>\n<|user|>\nc</s>\n<|assistant|>\n",
            ),
            ("vicuna", "§\n\nUSER: a\nASSISTANT: b</s>\nUSER: c\nASSISTANT:"),
        ] {
            assert_eq!(rendered(name, true), expected, "{name}");
            assert!(!rendered(name, false).contains('§'), "{name}");
        }
        assert!(rendered("llama2", false).starts_with("<s>[INST] a [/INST]"));
    }

    #[test]
    fn a_template_is_a_name_a_file_or_jinja() {
        let choose = |text: &str| {
            chosen(&ChatTemplateFlags { chat_template: Some(text.into()), chat_template_file: None })
        };
        assert_eq!(choose("{{ 1 }}").unwrap().as_deref(), Some("{{ 1 }}"));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{{ 2 }}").unwrap();
        assert_eq!(choose(file.path().to_str().unwrap()).unwrap().as_deref(), Some("{{ 2 }}"));
        assert!(choose("llama9").unwrap_err().to_string().contains("not one of chatml, llama2"));
    }
}
