//! Counts the instructions of the hot kernels under callgrind and holds them to the record in `bench/instructions`.
//!
//! `cargo bench -p verbatim-cpu --bench instructions` compares, and fails if a kernel takes over 3 % more than recorded;
//! with `-- --record` it writes the record anew. The program runs itself under valgrind, once per instruction set.

mod callgrind;
mod counts;
mod kernels;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs, io};

use counts::{Change, Comparison, Record, TOLERANCE_PERCENT, compare};
use verbatim_simd::{ISA_VARIABLE, Isa};

/// What valgrind can run.
const INSTRUCTION_SETS: [&str; 2] = ["scalar", "avx2"];

const HEADER: &str = "\
# Instructions of one call of each kernel (what is measured: crates/cpu/benches/instructions/kernels.rs).
# Renew: cargo bench -p verbatim-cpu --bench instructions -- --record
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [callgrind::CHILD_ARGUMENT] => {
            kernels::run_all();
            Ok(true)
        }
        [] => run(false),
        ["--record"] => run(true),
        _ => Err(io::Error::other("usage: cargo bench -p verbatim-cpu --bench instructions [-- --record]")),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures on every instruction set, or on the one that `VERBATIM_ISA` names; whether all is well.
fn run(renew: bool) -> io::Result<bool> {
    let asked_for = env::var(ISA_VARIABLE).ok().filter(|name| !name.is_empty());
    let compiler = compiler()?;
    let mut is_well = true;
    for isa in INSTRUCTION_SETS {
        if asked_for.as_deref().is_some_and(|name| name != isa) {
            continue;
        }
        if Isa::named(isa).is_err() {
            println!("{isa}: not on this machine, so not compared");
            continue;
        }
        let measured = Record { compiler: compiler.clone(), counts: callgrind::count(isa)? };
        let path = record_path(isa);
        if renew {
            fs::write(&path, format!("{HEADER}{measured}"))?;
            println!("{isa}: recorded {} kernels in {}", measured.counts.len(), path.display());
        } else {
            let text = fs::read_to_string(&path)
                .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
            let recorded: Record =
                text.parse().map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
            is_well &= report(isa, &recorded, &measured);
        }
    }
    Ok(is_well)
}

/// Prints what differs; whether the measured counts are to be accepted.
fn report(isa: &str, recorded: &Record, measured: &Record) -> bool {
    let comparisons = compare(recorded, measured);
    let of = |change| comparisons.iter().filter(move |c| c.change() == change).collect::<Vec<_>>();
    let same = of(Change::Same).len();
    println!("{isa}: {same} of {} kernels within {TOLERANCE_PERCENT} % of the record", comparisons.len());
    let table = |title: &str, rows: &[&Comparison]| {
        if !rows.is_empty() {
            println!("\n{isa}: {title}\n{:<28} {:>11} {:>11}", "kernel", "recorded", "now");
            rows.iter().for_each(|row| println!("{row}"));
        }
    };
    let (grown, shrunk) = (of(Change::Grown), of(Change::Shrunk));
    let renamed = [of(Change::New), of(Change::Gone)].concat();
    table("these take more instructions than recorded", &grown);
    table("these take fewer; renew the record, so that they stay so", &shrunk);
    table("these are in one of the two only; renew the record", &renamed);
    if !(grown.is_empty() && shrunk.is_empty() && renamed.is_empty()) {
        println!("\nTo renew the record: cargo bench -p verbatim-cpu --bench instructions -- --record");
    }
    if recorded.compiler != measured.compiler {
        println!(
            "{isa}: the record is of {}, this is {}: differences are reported but are not a failure",
            recorded.compiler, measured.compiler
        );
        return true;
    }
    grown.is_empty() && renamed.is_empty()
}

fn record_path(isa: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../bench/instructions/{isa}.txt"))
}

/// The version string of the compiler.
fn compiler() -> io::Result<String> {
    let output = Command::new("rustc").arg("--version").output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
