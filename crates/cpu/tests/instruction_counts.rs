//! The records of `benches/instructions`: how they are read, written and compared.

#[allow(dead_code)] // Only the benchmark uses the rest.
#[path = "../benches/instructions/counts.rs"]
mod counts;

use counts::*;

fn record(counts: &[(&str, u64)]) -> Record {
    let counts = counts.iter().map(|&(name, count)| (name.to_owned(), count)).collect();
    Record { compiler: "rustc 1.95.0".to_owned(), counts }
}

#[test]
fn a_record_is_read_back_as_written() {
    let written = record(&[("product Q4_0 × 8", 1_234_567), ("rms norm", 9)]);
    assert_eq!(format!("# How to renew it.\n\n{written}").parse(), Ok(written));
}

#[test]
fn an_invalid_record_is_rejected_with_its_line() {
    assert_eq!("rms norm 9".parse::<Record>(), Err(RecordError::NoCompiler));
    assert_eq!("compiler: x\nrms norm nine".parse::<Record>(), Err(RecordError::Line(2)));
    assert_eq!("# y\ncompiler: x\n\nnorm".parse::<Record>(), Err(RecordError::Line(4)));
}

#[test]
fn changes_beyond_three_per_cent_are_reported() {
    let recorded = record(&[("a", 1000), ("b", 1000), ("c", 1000), ("d", 1000), ("gone", 5)]);
    let measured = record(&[("a", 1030), ("new", 7), ("b", 1031), ("c", 970), ("d", 969)]);
    let changes: Vec<_> =
        compare(&recorded, &measured).iter().map(|c| (c.name.clone(), c.change())).collect();
    let wanted = [
        ("a", Change::Same),
        ("new", Change::New),
        ("b", Change::Grown),
        ("c", Change::Same),
        ("d", Change::Shrunk),
        ("gone", Change::Gone),
    ];
    assert_eq!(changes, wanted.map(|(name, change)| (name.to_owned(), change)));
}
