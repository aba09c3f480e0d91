//! What every verbs device must do, written once against the contract.
