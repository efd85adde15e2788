//! A mean with its standard error, in one pass.

/// The mean of the values added so far (Welford's method, Technometrics 4:419, 1962).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunningMean {
    count: usize,
    mean: f64,
    /// Sum of the squared differences from the mean.
    squares: f64,
}

impl RunningMean {
    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    /// The number of values.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The mean; 0 without values.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// The standard error of the mean, assuming independent values; 0 for fewer than two.
    pub fn standard_error(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        let count = self.count as f64;
        (self.squares / (count - 1.0) / count).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_error_are_those_of_the_definition() {
        let mut mean = RunningMean::default();
        assert_eq!((mean.count(), mean.mean(), mean.standard_error()), (0, 0.0, 0.0));
        [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0].into_iter().for_each(|value| mean.add(value));
        // The sum of squared differences is 32.
        assert_eq!((mean.count(), mean.mean()), (8, 5.0));
        assert!((mean.standard_error() - (32f64 / 7.0 / 8.0).sqrt()).abs() < 1e-15);
    }
}
