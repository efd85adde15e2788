//! A terminal for tests: tmux, without a window. Keys go in, and screens come out.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a screen may take to come. Far longer than it ever takes.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// Whether there is tmux. Says so if there is none, and fails where nothing may be skipped.
pub fn is_there() -> bool {
    let found = Command::new("tmux").arg("-V").output().is_ok();
    if !found {
        let is_forbidden = std::env::var_os("VERBATIM_TEST_FORBID_SKIP").is_some();
        assert!(!is_forbidden, "tmux is missing: apt-get install tmux");
        eprintln!("SKIPPED: there is no tmux (apt-get install tmux)");
    }
    found
}

/// A terminal in which a program runs. It is closed when it is dropped.
pub struct Terminal {
    socket: PathBuf,
}

impl Terminal {
    /// Runs a command of the shell in a terminal of this size, with variables. Afterwards the terminal shows `status N`.
    pub fn start(home: &Path, size: (usize, usize), variables: &[(&str, &str)], line: &str) -> Terminal {
        // A server that ends keeps its socket for a moment.
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let socket = home.join(format!("tmux{}", STARTED.fetch_add(1, Ordering::Relaxed)));
        let terminal = Terminal { socket };
        let mut command = terminal.tmux();
        for (variable, _) in std::env::vars_os() {
            let name = variable.to_string_lossy().to_ascii_uppercase();
            if name.starts_with("VERBATIM_")
                || name.starts_with("HF_")
                || name.ends_with("_PROXY")
                || name == "TMUX"
            {
                command.env_remove(&variable);
            }
        }
        command.env("VERBATIM_HOME", home).env("VERBATIM_CONFIG_FILE", home.join("config.toml"));
        command.env("LC_ALL", "C.UTF-8").env("SHELL", "/bin/sh");
        let set: String = variables.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        // The shell, too, gets the SIGINT of Ctrl-C, and goes on.
        let line = format!("trap : INT; env {set}{line}; echo \"status $?\"; exec sleep 1000");
        command.args(["new-session", "-d", "-x", &size.0.to_string(), "-y", &size.1.to_string(), &line]);
        terminal.done(command);
        terminal
    }

    fn tmux(&self) -> Command {
        let mut command = Command::new("tmux");
        command.args(["-u", "-f", "/dev/null", "-S"]).arg(&self.socket);
        command
    }

    fn done(&self, mut command: Command) -> String {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        let mut command = self.tmux();
        command.args(arguments);
        self.done(command)
    }

    /// Presses keys: `Enter`, `C-c`, `Tab`, or texts.
    pub fn keys(&self, keys: &[&str]) {
        self.run(["send-keys"].iter().chain(keys));
    }

    /// Types a line, and waits for nothing.
    pub fn line(&self, text: &str) {
        self.run(["send-keys", "-l", "--", text]);
        self.keys(&["Enter"]);
    }

    /// Pastes a text, as terminals do it that mark what is pasted, or as the others do.
    pub fn paste(&self, text: &str, is_marked: bool) {
        self.run(["set-buffer", "--", text]);
        self.run(if is_marked { &["paste-buffer", "-p"][..] } else { &["paste-buffer"] });
    }

    /// Gives the window another size, and waits until the program can see it: tmux tells programs with a delay.
    pub fn resize(&self, columns: usize, rows: usize) {
        self.run(["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]);
        let terminal = self.run(["display-message", "-p", "#{pane_tty}"]);
        let size = || Command::new("stty").args(["-F", terminal.trim(), "size"]).output().unwrap().stdout;
        let (since, expected) = (Instant::now(), format!("{rows} {columns}\n"));
        while size() != expected.as_bytes() {
            assert!(since.elapsed() < PATIENCE, "the terminal does not become {expected}");
            std::thread::sleep(POLL);
        }
    }

    /// All lines since the beginning, without the empty ones at the end.
    pub fn screen(&self) -> String {
        self.run(["capture-pane", "-p", "-S", "-"]).trim_end().to_owned()
    }

    /// Waits until the screen is as wanted, and returns it.
    #[track_caller]
    pub fn wait(&self, wanted: impl Fn(&str) -> bool) -> String {
        let since = Instant::now();
        loop {
            let screen = self.screen();
            if wanted(&screen) {
                return screen;
            }
            assert!(since.elapsed() < PATIENCE, "this is not what was expected:\n{screen}");
            std::thread::sleep(POLL);
        }
    }

    /// Waits until the screen ends with this text.
    #[track_caller]
    pub fn wait_end(&self, end: &str) -> String {
        self.wait(|screen| screen.ends_with(end))
    }

    /// Waits for a text anywhere.
    #[track_caller]
    pub fn wait_for(&self, text: &str) -> String {
        self.wait(|screen| screen.contains(text))
    }

    /// The process id of the program in the terminal.
    pub fn program(&self) -> String {
        let shell = self.run(["display-message", "-p", "#{pane_pid}"]).trim().to_owned();
        let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
        children.split_whitespace().next().expect("the program runs").to_owned()
    }

    /// Closes the window, as a user does.
    pub fn close(&self) {
        let program = self.program();
        self.run(["kill-server"]);
        let since = Instant::now();
        while Path::new(&format!("/proc/{program}")).exists() {
            assert!(since.elapsed() < PATIENCE, "the program goes on without its terminal");
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux().arg("kill-server").output();
    }
}
