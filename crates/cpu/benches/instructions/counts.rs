//! Records of how many instructions each kernel takes, and the comparison with new counts.
//!
//! A count hardly depends on the machine or on what else runs on it, so it can be held to a few per cent where a time cannot.
//! It does depend on the compiler, which a record therefore names.

use std::fmt;
use std::str::FromStr;

/// How far a count may be from the record, in per cent, before it is reported.
pub const TOLERANCE_PERCENT: u64 = 3;

/// Instruction counts of kernels, in the order in which they are measured. As text: a line for the compiler, then a line
/// of name and count for each kernel; empty lines and lines that begin with `#` are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What `rustc --version` prints.
    pub compiler: String,
    /// Names and counts.
    pub counts: Vec<(String, u64)>,
}

/// Why a text is not a record.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The line that names the compiler is missing.
    #[error(
        "the record does not say which compiler it is of: its first line should be `compiler: rustc 1.…`"
    )]
    NoCompiler,
    /// A line is not a name and a count.
    #[error("line {0} of the record should be a kernel's name and its instruction count")]
    Line(usize),
}

impl FromStr for Record {
    type Err = RecordError;

    fn from_str(text: &str) -> Result<Record, RecordError> {
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let first = lines.next().and_then(|(_, line)| line.strip_prefix("compiler:"));
        let compiler = first.ok_or(RecordError::NoCompiler)?.trim().to_owned();
        let count = |(number, line): (usize, &str)| {
            let (name, count) = line.rsplit_once(' ').ok_or(RecordError::Line(number))?;
            Ok((name.trim().to_owned(), count.parse().map_err(|_| RecordError::Line(number))?))
        };
        Ok(Record { compiler, counts: lines.map(count).collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "compiler: {}", self.compiler)?;
        self.counts.iter().try_for_each(|(name, count)| writeln!(f, "{name:<28} {count:>11}"))
    }
}

/// What a kernel's count is, against the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Within the tolerance.
    Same,
    /// More instructions than recorded.
    Grown,
    /// Fewer than recorded.
    Shrunk,
    /// The record does not have this kernel.
    New,
    /// The record has a kernel that was not measured.
    Gone,
}

/// One kernel's counts, of which at least one is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The kernel.
    pub name: String,
    /// Its count in the record.
    pub recorded: Option<u64>,
    /// Its count now.
    pub measured: Option<u64>,
}

impl Comparison {
    /// The comparison of the two counts.
    pub fn change(&self) -> Change {
        match (self.recorded, self.measured) {
            (None, _) => Change::New,
            (_, None) => Change::Gone,
            (Some(recorded), Some(measured)) => {
                let room = recorded * TOLERANCE_PERCENT / 100;
                match measured {
                    _ if measured > recorded + room => Change::Grown,
                    _ if measured < recorded - room => Change::Shrunk,
                    _ => Change::Same,
                }
            }
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |count: Option<u64>| count.map_or("-".to_owned(), |count| count.to_string());
        write!(f, "{:<28} {:>11} {:>11}", self.name, number(self.recorded), number(self.measured))?;
        if let (Some(recorded), Some(measured)) = (self.recorded, self.measured) {
            let percent = (measured as f64 / recorded.max(1) as f64 - 1.0) * 100.0;
            write!(f, " {percent:>+8.2} %")?;
        }
        Ok(())
    }
}

/// Every kernel of either record: those measured in their order, then those that are gone.
pub fn compare(recorded: &Record, measured: &Record) -> Vec<Comparison> {
    let count = |record: &Record, name: &str| {
        record.counts.iter().find(|(other, _)| other == name).map(|&(_, count)| count)
    };
    let mut names: Vec<&String> = measured.counts.iter().map(|(name, _)| name).collect();
    names.extend(recorded.counts.iter().map(|(name, _)| name).filter(|name| count(measured, name).is_none()));
    names
        .into_iter()
        .map(|name| Comparison {
            name: name.clone(),
            recorded: count(recorded, name),
            measured: count(measured, name),
        })
        .collect()
}
