//! What the middleware saves: tokens before and after, what the saved tokens would have cost, and how much of an answer's sources would have
//! been kept. `docs/savings.md` states the arithmetic. The module knows nothing of transports.

pub mod counts;
pub mod ledger;
pub mod losses;
pub mod report;
pub mod settings;
pub mod traffic;
