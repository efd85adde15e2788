//! The sampling settings that a model file recommends: the keys `general.sampling.*`.

use verbatim_gguf::{GgufFile, Value};
use verbatim_sample::{SamplerKind, Sampling};

/// What a file recommends, over the defaults. The second are problems with its recommendations, which are then left out.
pub fn recommended_sampling(file: &GgufFile) -> (Sampling, Vec<String>) {
    let (mut sampling, mut problems) = (Sampling::default(), Vec::new());
    for (key, value) in file.metadata().iter() {
        let Some(name) = key.strip_prefix("general.sampling.") else { continue };
        let mut next = sampling.clone();
        let applied = apply(name, value, &mut next);
        match applied.and_then(|()| next.validate().map_err(|error| error.to_string())) {
            Ok(()) => sampling = next,
            Err(problem) => problems.push(format!("{key} is ignored: {problem}")),
        }
    }
    (sampling, problems)
}

fn apply(name: &str, value: Value<'_>, sampling: &mut Sampling) -> Result<(), String> {
    let real = || value.as_f32().or(value.as_integer().map(|n| n as f32)).ok_or("it is not a number");
    let integer = || value.as_integer().ok_or("it is not an integer");
    match name {
        "sequence" => {
            let Value::Str(names) = value else { return Err("it is not a text".to_owned()) };
            let names = String::from_utf8_lossy(names);
            let names = names.split(';').filter(|name| !name.trim().is_empty());
            let samplers: Result<Vec<SamplerKind>, _> = names.map(str::parse).collect();
            sampling.samplers =
                samplers.map_err(|error: verbatim_sample::UnknownSampler| error.to_string())?;
        }
        "temp" => sampling.temperature = real()?,
        "top_k" => sampling.top_k = usize::try_from(integer()?).unwrap_or(0),
        "top_p" => sampling.top_p = real()?,
        "min_p" => sampling.min_p = real()?,
        "xtc_probability" => sampling.xtc_probability = real()?,
        "xtc_threshold" => sampling.xtc_threshold = real()?,
        "penalty_last_n" => sampling.repeat_last_n = usize::try_from(integer()?).ok(),
        "penalty_repeat" => sampling.repeat_penalty = real()?,
        "mirostat" => match integer()? {
            0 => sampling.mirostat = false,
            2 => sampling.mirostat = true,
            version => return Err(format!("there is no support for mirostat {version}, only 0 and 2")),
        },
        "mirostat_tau" => sampling.mirostat_tau = real()?,
        "mirostat_eta" => sampling.mirostat_eta = real()?,
        _ => return Err("there is no such setting".to_owned()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_gguf::{GgufWriter, Value};

    fn recommended(entries: &[(&str, Value<'_>)]) -> (Sampling, Vec<String>) {
        let mut writer = GgufWriter::new();
        for (key, value) in entries {
            writer.put(&format!("general.sampling.{key}"), *value).expect("a new key");
        }
        let path = std::env::temp_dir().join(format!("verbatim-recommended-{}.gguf", fastrand::u64(..)));
        writer
            .begin(std::fs::File::create(&path).expect("a file"))
            .expect("valid")
            .finish()
            .expect("written");
        let result = recommended_sampling(&GgufFile::open(&path).expect("what was written"));
        std::fs::remove_file(&path).expect("written");
        result
    }

    #[test]
    fn a_file_recommends_settings() {
        assert_eq!(recommended(&[]), (Sampling::default(), vec![]));
        let (sampling, problems) = recommended(&[
            ("temp", Value::F32(0.6)),
            ("top_k", Value::I32(20)),
            ("top_p", Value::F64(0.5)),
            ("penalty_last_n", Value::I32(-1)),
            ("sequence", Value::Str(b"top_k;temperature")),
            ("mirostat", Value::I32(2)),
        ]);
        assert_eq!(problems, Vec::<String>::new());
        let samplers = vec![SamplerKind::TopK, SamplerKind::Temperature];
        let wanted = Sampling {
            temperature: 0.6,
            top_k: 20,
            top_p: 0.5,
            repeat_last_n: None,
            samplers,
            mirostat: true,
            ..Sampling::default()
        };
        assert_eq!(sampling, wanted);
    }

    #[test]
    fn what_cannot_be_followed_is_left_out_and_reported() {
        let (sampling, problems) = recommended(&[
            ("temp", Value::F32(f32::NAN)),
            ("top_k", Value::Str(b"many")),
            ("mirostat", Value::I32(1)),
            ("sequence", Value::Str(b"top_k;magic")),
            ("min_p", Value::F32(0.1)),
            ("mood", Value::I32(1)),
        ]);
        assert_eq!(sampling, Sampling { min_p: 0.1, ..Sampling::default() });
        assert_eq!(problems.len(), 5);
        assert!(
            problems[0].contains("general.sampling.temp is ignored: the temperature must be"),
            "{problems:?}"
        );
    }
}
