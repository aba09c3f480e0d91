use crate::{CaseResult, Env};
use std::fmt;

/// One thing that a device must do.
pub struct Case {
    name: String,
    run: Box<dyn Fn(&Env) -> CaseResult + Send + Sync>,
}

impl Case {
    /// The case `name`: words separated by `/`, the first of which is its group.
    pub fn new(name: impl Into<String>, run: impl Fn(&Env) -> CaseResult + Send + Sync + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }

    /// Its name; no two cases share one.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The group it belongs to: the name's first word.
    pub fn group(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// Tries it.
    pub fn run(&self, env: &Env) -> CaseResult {
        (self.run)(env)
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Case").field(&self.name).finish()
    }
}
