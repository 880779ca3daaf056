//! Measures: what a number counts, and when two numbers state the same, or exclude each other.

/// The base units that are money. What something costs in one excludes the same number of another.
const CURRENCIES: [&str; 4] = ["$", "€", "£", "¥"];

/// The numbers that are taken for years if they have no unit and no separator.
pub(super) const YEARS: std::ops::RangeInclusive<f64> = 1000.0..=2100.0;

/// What a number stands for: an amount of a unit, a date, a place in an order and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Units of a known kind, converted to this base unit.
    Unit(&'static str),
    Year,
    /// A date as the number `yyyymmdd`; a month of a year is the range of its days.
    Date,
    /// A day of any year as the number `mmdd`; a month is the range of its days.
    DayOfYear,
    /// The number of the day, from Monday.
    Weekday,
    /// The place in an order: `20th`.
    Ordinal,
    /// The time of day, in minutes from midnight. `low` and `high` are the two times that it can be: `6:00` is in the morning or in
    /// the evening.
    Clock,
    /// A version, in which `2.10` is not `2.1`: its up to three numbers, as digits of a number to the base `VERSION_BASE`.
    Version,
    Count,
}

/// The base to which the numbers of a version are digits. Larger ones are no versions.
pub(super) const VERSION_BASE: f64 = 100_000.0;

/// Half a day in minutes, the unit of [`Measure::Clock`].
const HALF_DAY: f64 = 12.0 * 60.0;

/// The amounts between two, which are counted as they are written: from October to April is a range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AmountRange {
    from: Amount,
    to: Amount,
}

/// A number, or a range of numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Amount {
    /// What it counts. Amounts of most different measures cannot be compared.
    pub measure: Measure,
    pub low: f64,
    /// The greatest value; that of `low` unless the amount is a decade, a century, a month or an ambiguous time.
    pub high: f64,
}

impl Amount {
    pub(super) fn exact(measure: Measure, value: f64) -> Self {
        Self { measure, low: value, high: value }
    }

    /// Returns whether a source with the `other` amount states this one: the same, or one within this range.
    pub fn covers(&self, other: &Self) -> bool {
        self.on_one_scale(other).is_some_and(|(one, other)| match self.measure {
            Measure::Clock => [other.low, other.high].iter().any(|time| [one.low, one.high].contains(time)),
            _ => one.low <= other.low && other.high <= one.high,
        })
    }

    /// Returns whether the two amounts answer the same question and cannot both be true. Counts up to 100 are compared only with each other.
    pub fn excludes(&self, other: &Self) -> bool {
        /// The greatest count that is small.
        const SMALL_MAX: f64 = 100.0;
        let is_small = |amount: &Self| amount.low.abs() <= SMALL_MAX;
        match (self.measure, other.measure) {
            (Measure::Count, Measure::Count) if is_small(self) != is_small(other) => false,
            (Measure::Unit(one), Measure::Unit(other))
                if one != other && CURRENCIES.contains(&one) && CURRENCIES.contains(&other) =>
            {
                true
            }
            (Measure::Clock, _) => self.measure == other.measure && !self.covers(other),
            _ => self
                .on_one_scale(other)
                .is_some_and(|(one, other)| one.high < other.low || other.high < one.low),
        }
    }

    /// Returns the range from this amount to another; `None` if these are of different measures, or if the other comes first and such
    /// amounts do not begin again, as days of the year do.
    pub(super) fn through(&self, other: &Self) -> Option<AmountRange> {
        let (from, to) = self.on_one_scale(other)?;
        (from.low <= to.high || from.begins_again()).then_some(AmountRange { from, to })
    }

    /// Returns whether the amount is the first end of a range.
    pub(super) fn begins(&self, range: &AmountRange) -> bool {
        self.on_one_scale(&range.from).is_some_and(|(one, from)| (one.low, one.high) == (from.low, from.high))
    }

    fn begins_again(&self) -> bool {
        matches!(self.measure, Measure::Clock | Measure::DayOfYear | Measure::Weekday)
    }

    /// Returns a count of hours as the time of day that it can be, as in `8-18`; `None` if it is none.
    pub(super) fn as_hour(&self) -> Option<Self> {
        const HOUR: f64 = 60.0;
        let is_hour = self.measure == Measure::Count && (0.0..=24.0).contains(&self.low);
        let low = self.low * HOUR % (2.0 * HALF_DAY);
        let is_ambiguous = (1.0..=12.0).contains(&self.low);
        let high = if is_ambiguous { (low + HALF_DAY) % (2.0 * HALF_DAY) } else { low };
        is_hour.then_some(Self { measure: Measure::Clock, low, high })
    }

    /// Returns whether the amount can lie in a range. For a time of day, a range of counts is one of hours.
    pub(super) fn is_within(&self, range: &AmountRange) -> bool {
        let end = |end: &Self| end.as_hour().filter(|_| self.measure == Measure::Clock).unwrap_or(*end);
        let Some((amount, from)) = self.on_one_scale(&end(&range.from)) else { return false };
        let Some((_, to)) = self.on_one_scale(&end(&range.to)) else { return false };
        let is_between = |low: f64, high: f64, from: f64, to: f64| {
            if from <= to { from <= low && high <= to } else { low >= from || high <= to }
        };
        if amount.measure != Measure::Clock {
            return is_between(amount.low, amount.high, from.low, to.high);
        }
        // Each of the times can be one of two: `8:00 to 6:00` ends at 18:00, and `1:00 to 5:00` is at night or in the afternoon.
        let end = if from.low <= to.low { to.low } else { to.high };
        let is_ambiguous = from.low != from.high && to.low != to.high;
        [amount.low, amount.high].iter().any(|&time| {
            let later = (time + HALF_DAY) % (2.0 * HALF_DAY);
            is_between(time, time, from.low, end) || is_ambiguous && is_between(later, later, from.low, end)
        })
    }

    /// Returns both amounts in one measure; `None` if they answer different questions.
    fn on_one_scale(&self, other: &Self) -> Option<(Self, Self)> {
        if self.measure == other.measure {
            return Some((*self, *other));
        }
        let as_date = |amount: &Self| match amount.measure {
            Measure::Year => {
                let (low, high) = (amount.low * 1e4, amount.high * 1e4 + 9_999.0);
                Some(Self { measure: Measure::Date, low, high })
            }
            Measure::Date => Some(*amount),
            _ => None,
        };
        let as_day = |amount: &Self| match amount.measure {
            Measure::DayOfYear => Some(*amount),
            Measure::Date => {
                let (low, high) = (amount.low % 1e4, amount.high % 1e4);
                Some(Self { measure: Measure::DayOfYear, low, high })
            }
            _ => None,
        };
        as_date(self).zip(as_date(other)).or_else(|| as_day(self).zip(as_day(other)))
    }
}
