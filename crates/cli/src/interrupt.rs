//! Ctrl-C as a flag, and as the end of the answer that is being given.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use verbatim_engine::Canceller;

/// Exit status of a program that a shell's user interrupted: 128 + SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

static RAISED: AtomicBool = AtomicBool::new(false);
/// What cancels the answer that is being given.
static ANSWER: Mutex<Option<Canceller>> = Mutex::new(None);

/// Proof that Ctrl-C no longer ends the program but raises a flag. There is one flag for the process.
#[derive(Debug, Clone, Copy)]
pub struct Interrupt(());

impl Interrupt {
    /// Takes Ctrl-C over for the rest of the process. A second Ctrl-C before anybody looked ends the process
    /// with status 130, so that a program that hangs can still be stopped.
    ///
    /// # Errors
    /// When the system refuses the handler.
    pub fn install() -> Result<Self, ctrlc::Error> {
        static INSTALLED: OnceLock<()> = OnceLock::new();
        if INSTALLED.get().is_none() {
            ctrlc::set_handler(raise)?;
            let _ = INSTALLED.set(());
        }
        Ok(Self(()))
    }

    /// True when Ctrl-C was pressed since the flag was last taken. Leaves the flag raised.
    pub fn is_raised(self) -> bool {
        RAISED.load(Ordering::SeqCst)
    }

    /// Lowers the flag and says whether it was raised.
    pub fn take(self) -> bool {
        RAISED.swap(false, Ordering::SeqCst)
    }

    /// From now until the guard is dropped, Ctrl-C cancels this answer; at once if it was pressed before.
    pub fn cancels(self, canceller: Canceller) -> Cancelling {
        *answer() = Some(canceller);
        // Whoever raises the flag first raises it and then looks for an answer, so one of us sees the other.
        if self.is_raised() {
            cancel();
        }
        Cancelling(self)
    }
}

/// An answer that Ctrl-C cancels. When it is dropped, the flag is lowered.
#[derive(Debug)]
pub struct Cancelling(Interrupt);

impl Drop for Cancelling {
    fn drop(&mut self) {
        *answer() = None;
        self.0.take();
    }
}

fn answer() -> MutexGuard<'static, Option<Canceller>> {
    ANSWER.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cancel() {
    if let Some(canceller) = &*answer() {
        canceller.cancel();
    }
}

fn raise() {
    if RAISED.swap(true, Ordering::SeqCst) {
        std::process::exit(EXIT_INTERRUPTED.into());
    }
    cancel();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_the_flag_lowers_it() {
        let interrupt = Interrupt::install().unwrap();
        let again = Interrupt::install().unwrap();
        assert!(!interrupt.is_raised());
        raise();
        assert!(interrupt.is_raised());
        assert!(again.take());
        assert!(!interrupt.take());
        raise();
        drop(Cancelling(interrupt));
        assert!(!interrupt.is_raised());
    }
}
