//! The flags of the server, with llama-server's names.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum, ValueHint};

use crate::values;

/// Where the server listens, for whom, and its limits.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Server")]
pub struct ServerFlags {
    /// Address to listen on; 0.0.0.0 is every address of this machine
    #[arg(long, value_name = "ADDRESS", env = "VERBATIM_HOST", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 is any that is free
    #[arg(long, value_name = "PORT", env = "VERBATIM_PORT", default_value = "8080")]
    pub port: u16,
    /// Names of the model for clients, separated by commas [default: its name and that of its file]
    #[arg(
        short,
        long,
        value_name = "NAMES",
        env = "VERBATIM_ALIAS",
        value_delimiter = ',',
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub alias: Vec<String>,
    /// Slots: requests computed at once, each of which has memory for a whole context
    #[arg(
        long = "np",
        visible_alias = "parallel",
        value_name = "N",
        env = "VERBATIM_NP",
        default_value = "4",
        value_parser = values::positive
    )]
    pub slots: usize,
    /// Requests that may wait for a slot; when they are more, the server answers 429
    #[arg(long, value_name = "N", env = "VERBATIM_QUEUE", default_value = "256", value_parser = values::count)]
    pub queue: usize,
    /// Keys of which requests must have one, separated by commas [default: no key is needed]
    #[arg(
        long,
        value_name = "KEYS",
        env = "VERBATIM_API_KEY",
        hide_env_values = true,
        value_delimiter = ',',
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub api_key: Vec<String>,
    /// File with such keys, one a line
    #[arg(long, value_name = "FILE", env = "VERBATIM_API_KEY_FILE", value_hint = ValueHint::FilePath)]
    pub api_key_file: Option<PathBuf>,
    /// Names of this machine that clients use in place of its IP address, separated by commas; * is any. Needed without a key only
    #[arg(long, value_name = "NAMES", env = "VERBATIM_ALLOWED_HOSTS", value_delimiter = ',')]
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages that may use the server, such as `https://chat.example`, separated by commas; * is any
    #[arg(long, value_name = "ORIGINS", env = "VERBATIM_ALLOWED_ORIGINS", value_delimiter = ',')]
    pub allowed_origins: Vec<String>,
    /// Seconds that a client may take to send a request, or to read some of its answer
    #[arg(
        long,
        value_name = "SECONDS",
        env = "VERBATIM_TIMEOUT",
        default_value = "60",
        value_parser = values::positive
    )]
    pub timeout: usize,
    /// Seconds that running answers may take to end after Ctrl-C or SIGTERM; a second one ends them at once
    #[arg(
        long,
        value_name = "SECONDS",
        env = "VERBATIM_DRAIN",
        default_value = "60",
        value_parser = values::count
    )]
    pub drain: usize,
    /// Largest body of a request, in MiB
    #[arg(
        long,
        value_name = "MIB",
        env = "VERBATIM_BODY_MIB",
        default_value = "16",
        value_parser = values::positive
    )]
    pub body_mib: usize,
    /// How requests are logged on standard error
    #[arg(
        long,
        value_name = "FORMAT",
        env = "VERBATIM_LOG_FORMAT",
        default_value = "text",
        ignore_case = true
    )]
    pub log_format: LogFormat,
}

/// How requests are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line each.
    Text,
    /// A JSON object each.
    Json,
    /// Not at all.
    Off,
}

impl ServerFlags {
    /// [`Self::timeout`].
    pub fn io_timeout(&self) -> Duration {
        Duration::from_secs(self.timeout as u64)
    }

    /// [`Self::drain`].
    pub fn drain_timeout(&self) -> Duration {
        Duration::from_secs(self.drain as u64)
    }
}

/// llama-server's variables for flags of `serve`, which count where the flag's own variable is not set.
#[rustfmt::skip]
const LLAMA_VARIABLES: &[(&str, &str)] = &[
    ("model", "LLAMA_ARG_MODEL"),
    ("host", "LLAMA_ARG_HOST"),
    ("port", "LLAMA_ARG_PORT"),
    ("alias", "LLAMA_ARG_ALIAS"),
    ("slots", "LLAMA_ARG_N_PARALLEL"),
    ("api_key", "LLAMA_API_KEY"),
    ("timeout", "LLAMA_ARG_TIMEOUT"),
    ("context_tokens", "LLAMA_ARG_CTX_SIZE"),
    ("max_tokens", "LLAMA_ARG_N_PREDICT"),
    ("threads", "LLAMA_ARG_THREADS"),
    ("cache_type_k", "LLAMA_ARG_CACHE_TYPE_K"),
    ("cache_type_v", "LLAMA_ARG_CACHE_TYPE_V"),
    ("cache_mib", "LLAMA_ARG_CACHE_RAM"),
    ("chat_template", "LLAMA_ARG_CHAT_TEMPLATE"),
    ("chat_template_file", "LLAMA_ARG_CHAT_TEMPLATE_FILE"),
    ("reasoning_budget", "LLAMA_ARG_THINK_BUDGET"),
];

/// llama-server's variable for a flag of `serve`, by the flag's id.
pub fn llama_variable(id: &str) -> Option<&'static str> {
    LLAMA_VARIABLES.iter().find(|(flag, _)| *flag == id).map(|(_, variable)| *variable)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::flags::Cli;

    #[test]
    fn variables_are_of_flags() {
        let program = Cli::command();
        let serve = program.find_subcommand("serve").unwrap();
        for (id, _) in LLAMA_VARIABLES {
            assert!(serve.get_arguments().any(|flag| flag.get_id() == id), "{id}");
        }
    }
}
