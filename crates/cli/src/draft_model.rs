//! The draft model that the flags select.

use anyhow::{Context, bail};
use clap::ValueEnum;
use verbatim_device::Device;
use verbatim_engine::{DraftModel, DraftOptions, Stepper};

use crate::model_file::ModelFile;
use crate::speculation_flags::{SpecType, SpeculationFlags};

/// An opened draft model, and how it is to draft.
pub struct Draft {
    file: ModelFile,
    options: DraftOptions,
    kind: Option<SpecType>,
    n_min: usize,
    p_min: f32,
}

impl Draft {
    /// Opens the draft model that the flags name, if they name one, with `open_model`. `rotates`: K and V are transformed before they
    /// are quantised.
    ///
    /// # Errors
    /// When a type of draft model is named, but no draft model; when it cannot be opened.
    pub fn open(
        open_model: impl Fn(&str) -> anyhow::Result<ModelFile>,
        flags: &SpeculationFlags,
        rotates: bool,
    ) -> anyhow::Result<Option<Draft>> {
        let kind = flags.model_type();
        let Some(name) = flags.model_draft.as_ref().filter(|_| flags.wants_model()) else {
            if let Some(kind) = kind.and_then(|kind| kind.to_possible_value()) {
                bail!("--spec-type {} needs a draft model: --model-draft FILE", kind.get_name());
            }
            return Ok(None);
        };
        let file = open_model(name).context("the draft model cannot be opened")?;
        let (k, v) = (flags.cache_type_k_draft, flags.cache_type_v_draft);
        let options =
            DraftOptions { k, v, hadamard: rotates, backend_sampling: !flags.no_spec_draft_backend_sampling };
        let (n_min, p_min) = (flags.spec_draft_n_min, flags.spec_draft_p_min);
        Ok(Some(Draft { file, options, kind, n_min, p_min }))
    }

    /// A draft model that is used with [`Draft::append_like`].
    pub fn of_file(file: ModelFile) -> Draft {
        Draft { file, options: DraftOptions::default(), kind: None, n_min: 0, p_min: 0.0 }
    }

    /// Adds it to a loaded target.
    ///
    /// # Errors
    /// When it does not fit the target, is of another type than the flags say, or memory does not suffice.
    pub fn append(&self, stepper: &mut Stepper<Device>, target: &ModelFile) -> anyhow::Result<DraftModel> {
        let problem = || format!("--model-draft {} cannot be used", self.file.path.display());
        let model =
            stepper.append_draft(&self.file.gguf, &target.gguf, &self.options).with_context(problem)?;
        let method = stepper.draft_method(model).unwrap_or_default();
        if let Some(kind) = self.kind.and_then(|kind| kind.to_possible_value())
            && kind.get_name() != method
        {
            bail!("--spec-type {}, but --model-draft is a model of the type {method}", kind.get_name());
        }
        Ok(DraftModel { model, n_min: self.n_min, p_min: self.p_min })
    }

    /// As [`Draft::append`], with the same types of K and V as the target's.
    ///
    /// # Errors
    /// As for [`Draft::append`].
    pub fn append_like(
        &self,
        stepper: &mut Stepper<Device>,
        target: &ModelFile,
        options: DraftOptions,
    ) -> anyhow::Result<DraftModel> {
        let model = stepper.append_draft(&self.file.gguf, &target.gguf, &options)?;
        Ok(DraftModel::new(model))
    }
}
