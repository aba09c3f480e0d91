//! The protocol, between endpoints in a network with time and faults of its own.

mod flows;
mod hostile;
mod listeners;
mod overload;
mod params;
mod peer;
mod reports;
mod sidr;
mod storm;
mod table;
mod world;
