"""Evidence and claims of an invented world, for `cross.py`: what a claim says is known, so each pair has a label.

Every fact is told in one of several ways. A claim tells it in another way, or leaves something out; a false claim changes one
thing: a name, a number, a date, the order of two events, who did it to whom, a quantity, or whether it was so at all.
"""

import random
import re

FIRST = """Ada Boris Clara Daniel Elena Farid Grace Hugo Ines Jonas Kira Liam Mona Nils Olga Paul Rosa Samir Tara Viktor Wendy Yusuf Zoe Amir
Beth Carl Dina Emil Fiona Gregor Hanna Ivan Judith Karl Lena Marco Nora Oscar Petra Ruth""".split()
LAST = """Abara Bergman Castell Dunmore Eklund Farrow Grieg Haddad Ivanov Jansen Kowalski Lindqvist Moreau Novak Okafor Petrov Quill Romero
Sandoval Thorne Ueda Valdez Whitlock Yilmaz Zeller Ashby Brandt Coyle Delgado Ferris Holloway Ingram Keating Larsen Mercer""".split()
PLACES = {
    "France": ["Lyon", "Nantes", "Toulouse"], "Germany": ["Bremen", "Leipzig", "Dresden"], "Canada": ["Ottawa", "Halifax", "Calgary"],
    "Japan": ["Osaka", "Sapporo", "Kobe"], "Brazil": ["Recife", "Curitiba", "Manaus"], "Egypt": ["Cairo", "Luxor", "Aswan"],
    "Poland": ["Krakow", "Gdansk", "Lodz"], "Australia": ["Perth", "Hobart", "Darwin"], "Spain": ["Seville", "Bilbao", "Valencia"],
    "Kenya": ["Nairobi", "Mombasa", "Kisumu"], "Chile": ["Santiago", "Valdivia", "Arica"], "Norway": ["Bergen", "Oslo", "Tromso"],
}
CITIES = {city: country for country, cities in PLACES.items() for city in cities}
MONTHS = """January February March April May June July August September October November December""".split()
JOBS = [("novelist", "writer"), ("painter", "artist"), ("cardiologist", "doctor"), ("violinist", "musician"), ("goalkeeper", "footballer"),
        ("botanist", "scientist"), ("senator", "politician"), ("pastry chef", "cook"), ("film director", "filmmaker"), ("physicist", "scientist"),
        ("sculptor", "artist"), ("pianist", "musician"), ("surgeon", "doctor"), ("poet", "writer"), ("striker", "footballer")]
WORKS = [("novel", "book", "wrote", "written by", "published"), ("film", "movie", "directed", "directed by", "released"),
         ("album", "record", "recorded", "recorded by", "released"), ("opera", "musical work", "composed", "composed by", "first performed"),
         ("play", "stage work", "wrote", "written by", "first performed"), ("painting", "work of art", "painted", "painted by", "first shown")]
TITLES_A = "Silent Broken Golden Distant Winter Crimson Hidden Last Iron Paper Glass Burning Empty Northern Secret".split()
TITLES_B = "Harbour River Crown Letter Garden Mirror Station Island Orchard Bridge Season Kingdom Witness Lantern Road".split()
ANIMALS = [("wolf", "mammal", "bird"), ("eagle", "bird", "mammal"), ("salmon", "fish", "reptile"), ("beetle", "insect", "fish"), ("viper", "reptile", "insect")]
MATERIALS = "granite timber steel brick marble concrete".split()
THINGS = [("bridge", "long", "longest", "metres"), ("tower", "tall", "tallest", "metres"), ("lake", "deep", "deepest", "metres"),
          ("tunnel", "long", "longest", "kilometres"), ("mountain", "high", "highest", "metres")]
WORDS = {1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten", 11: "eleven", 12: "twelve"}
FILLERS = ["The region is known for its mild winters.", "Several local newspapers reported on it.", "It has been the subject of two books.",
           "The archive was moved twice.", "Visitors come mostly in summer.", "Critics were divided.", "Little is known about the early years."]


def with_articles(text):
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


class Maker:
    """Makes pairs from a seeded generator of random numbers."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, items, *but):
        return self.r.choice([item for item in items if item not in but])

    def person(self):
        return f"{self.r.choice(FIRST)} {self.r.choice(LAST)}"

    def title(self):
        return f"The {self.r.choice(TITLES_A)} {self.r.choice(TITLES_B)}"

    def year(self):
        return self.r.randint(1820, 2019)

    def other_year(self, year):
        return year + self.r.choice([-1, 1]) * self.r.choice([1, 2, 3, 10, 11, 25, 40])

    def number(self, n):
        return WORDS[n] if n in WORDS and self.r.random() < 0.6 else str(n)

    def birth(self):
        p, city, year, month = self.person(), self.pick(list(CITIES)), self.year(), self.pick(MONTHS)
        country = CITIES[city]
        job, wide = self.r.choice(JOBS)
        evidence = self.r.choice([
            f"{p} (born {self.r.randint(1, 28)} {month} {year} in {city}, {country}) was a {job}.",
            f"{p} was a {job} from {city} in {country}, born in {month} {year}.",
            f"The {job} {p} was born in {city}, {country}, in {month} {year}.",
        ])
        true = [f"{p} was born in {country}.", f"{p} came from {city}.", f"{p} worked as a {wide}.", f"{p} was a {job} by profession.",
                f"{city} is the birthplace of {p}.", f"{p} was born before {year + self.r.randint(1, 30)}.", f"{p} was born in {year}.",
                f"{p}'s birthday is in {month}.", f"{p} was born after {year - self.r.randint(1, 30)}."]
        other = self.pick(list(PLACES), country)
        other_job = self.pick(JOBS, *[j for j in JOBS if j[1] == wide])
        false = [f"{p} was born in {other}.", f"{p} came from {self.pick(PLACES[other])}.", f"{p} worked as a {other_job[1]}.",
                 f"{p} was a {other_job[0]} by profession.", f"{p} was born after {year + self.r.randint(1, 30)}.", f"{p} was born in {self.other_year(year)}.",
                 f"{p}'s birthday is in {self.pick(MONTHS, month)}.", f"{self.pick(list(CITIES), city)} is the birthplace of {p}.",
                 f"{p} was not a {wide}."]
        return evidence, true, false

    def work(self):
        p, q, title, year = self.person(), self.person(), self.title(), self.year()
        kind, wide, did, by, out = self.r.choice(WORKS)
        evidence = self.r.choice([f"{title} is a {year} {kind} {by} {p}.", f"{p} {did} the {kind} {title}, which was {out} in {year}.",
                                  f"{title}, a {kind} that {p} {did}, was {out} in {year}."])
        true = [f"{p} {did} {title}.", f"{title} was {by} {p}.", f"{title} is a {wide}.", f"{title} was {out} in {year}.",
                f"The {wide} {title} came out in {year}.", f"{p} is the creator of {title}.", f"{title} had come out by {year + self.r.randint(0, 20)}."]
        other = self.pick(WORKS, *[w for w in WORKS if w[0] == kind])
        false = [f"{q} {did} {title}.", f"{title} was {by} {q}.", f"{title} is a {other[1]}.", f"{title} was {out} in {self.other_year(year)}.",
                 f"{title} came out before {year - self.r.randint(0, 20)}.", f"{p} had nothing to do with {title}.", f"{title} was never {out}."]
        return evidence, true, false

    def contest(self):
        a, b = self.pick(list(CITIES)), self.pick(list(CITIES))
        while b == a:
            b = self.pick(list(CITIES))
        low = self.r.randint(0, 4)
        high = low + self.r.randint(1, 4)
        year = self.year()
        evidence = self.r.choice([f"{a} beat {b} {high}-{low} in the final of {year}.", f"In the {year} final, {b} lost {low}-{high} to {a}.",
                                  f"{a} won the {year} final against {b} by {high} goals to {low}."])
        true = [f"{a} won against {b}.", f"{b} was defeated by {a}.", f"{b} lost the final in {year}.", f"{a} scored {self.number(high)} goals in the final.",
                f"{a} became champion in {year}.", f"{b} scored fewer goals than {a}.", f"The winner led by {self.number(high - low)} at the end."]
        false = [f"{b} won against {a}.", f"{a} was defeated by {b}.", f"{a} lost the final in {year}.", f"{b} scored {self.number(high)} goals in the final.",
                 f"{b} became champion in {year}.", f"{a} scored fewer goals than {b}.", f"{a} and {b} drew in the final.", f"{b} beat {a} {high}-{low}."]
        return evidence, true, false

    def family(self):
        p, q, n = self.person(), self.person(), self.r.randint(2, 11)
        year = self.year()
        evidence = self.r.choice([f"{p} married {q} in {year}; they had {self.number(n)} children.",
                                  f"In {year} {p} and {q} wed, and {self.number(n)} children followed.",
                                  f"{p} had {self.number(n)} children with {q}, whom {p} married in {year}."])
        true = [f"{q} was the spouse of {p}.", f"{p} was married.", f"{p} and {q} had more than {self.number(n - 1)} children.",
                f"{p} was a parent of {self.number(n)}.", f"{p} had fewer than {self.number(n + self.r.randint(1, 4))} children.",
                f"The wedding of {p} and {q} was in {year}.", f"{p} had several children."]
        false = [f"{p} never married.", f"{p} remained childless.", f"{p} and {q} had more than {self.number(n + self.r.randint(0, 4))} children.",
                 f"{p} was a parent of {self.number(n + self.r.choice([-1, 1, 2]))}.", f"{p} had fewer than {self.number(max(1, n - self.r.randint(0, 3)))} children.",
                 f"The wedding of {p} and {q} was in {self.other_year(year)}.", f"{p} had only one child.", f"{q} was a child of {p}."]
        return evidence, true, false

    def size(self):
        kind, adjective, most, unit = self.r.choice(THINGS)
        name, country, n = f"{self.r.choice(LAST)} {kind.capitalize()}", self.pick(list(PLACES)), self.r.randint(20, 900)
        evidence = self.r.choice([f"The {name} is {n} {unit} {adjective} and is the {most} {kind} in {country}.",
                                  f"At {n} {unit}, the {name} is {country}'s {most} {kind}.", f"No {kind} in {country} is as {adjective} as the {name}, which measures {n} {unit}."])
        other = self.pick(list(PLACES), country)
        true = [f"The {most} {kind} of {country} is the {name}.", f"The {name} is more than {n - self.r.randint(1, 15)} {unit} {adjective}.",
                f"The {name} is in {country}.", f"Every other {kind} in {country} is less {adjective} than the {name}.",
                f"The {name} is less than {n + self.r.randint(1, 200)} {unit} {adjective}."]
        false = [f"The {most} {kind} of {other} is the {name}.", f"The {name} is more than {n + self.r.randint(1, 200)} {unit} {adjective}.",
                 f"The {name} is in {other}.", f"There is a {kind} in {country} that is more {adjective} than the {name}.",
                 f"The {name} is the second {most} {kind} in {country}.", f"The {name} is less than {n - self.r.randint(1, 15)} {unit} {adjective}."]
        return evidence, true, false

    def order(self):
        p, city, first = self.person(), self.pick(list(CITIES)), self.year()
        second = first + self.r.randint(1, 30)
        a, b = self.r.sample([("moved to " + city, "the move to " + city), ("founded a school", "the founding of a school"), ("left the army", "leaving the army"),
                              ("became mayor", "becoming mayor"), ("lost a leg", "losing a leg"), ("learned to fly", "learning to fly"),
                              ("opened a bakery", "opening a bakery")], 2)
        evidence = self.r.choice([f"{p} {a[0]} in {first} and {b[0]} in {second}.", f"After {a[1]} in {first}, {p} {b[0]} {self.number(second - first)} years later.",
                                  f"{p} {b[0]} in {second}. In {first}, {p} {a[0]}."])
        true = [f"{p} {a[0]} before {b[1]}.", f"{p} {b[0]} after {a[1]}.", f"{p} first {a[0]} and later {b[0]}.", f"{p} {a[0]}.",
                f"{p} {b[0]} later than {first}."]
        false = [f"{p} {b[0]} before {a[1]}.", f"{p} {a[0]} after {b[1]}.", f"{p} first {b[0]} and later {a[0]}.", f"{p} never {a[0]}.",
                 f"{p} {b[0]} in {first}."]
        return evidence, true, false

    def share(self):
        group = self.r.choice(["workers", "students", "members", "farmers", "residents"])
        city, n = self.pick(list(CITIES)), self.r.choice([0, 8, 15, 48, 55, 80, 92, 100])
        act = self.r.choice(["own a car", "speak a second language", "voted for the plan", "work at night", "have a pension"])
        told = {0: "None", 100: "All"}.get(n, f"{n} percent")
        evidence = f"{told} of the {group} in {city} {act}, a survey found."
        high, some = n > 50, 0 < n
        true = [f"{'Most' if high else 'Less than half'} of the {group} in {city} {act}.",
                f"{'At least some' if some else 'No'} {group} in {city} {act}."]
        false = [f"{'Less than half' if high else 'Most'} of the {group} in {city} {act}.", f"{'No' if some else 'Some'} {group} in {city} {act}."]
        if n < 100:
            false.append(f"All {group} in {city} {act}.")
        if n > 90:
            true.append(f"Nearly all {group} in {city} {act}.")
        return evidence, true, false

    def nature(self):
        animal, kind, other = self.r.choice(ANIMALS)
        name, country = f"{self.r.choice(LAST)}'s {animal}", self.pick(list(PLACES))
        only, endangered = self.r.random() < 0.5, self.r.random() < 0.5
        evidence = f"{name} is a species of {animal} found {'only ' if only else ''}in {country}. It is {'close to extinction' if endangered else 'very common'}."
        true = [f"{name} is a {kind}.", f"{name} lives in {country}.", f"{name} is {'rare' if endangered else 'not rare'}."]
        false = [f"{name} is a {other}.", f"{name} does not occur in {country}.", f"{name} is {'abundant' if endangered else 'endangered'}."]
        if only:
            true.append(f"{name} is found nowhere but in {country}.")
            false.append(f"{name} is also found in {self.pick(list(PLACES), country)}.")
        return evidence, true, false

    def building(self):
        city, year, material = self.pick(list(CITIES)), self.year(), self.r.choice(MATERIALS)
        kind = self.r.choice(["library", "station", "theatre", "town hall", "church", "hospital"])
        burnt, rebuilt = year + self.r.randint(5, 60), self.r.random() < 0.5
        name = f"the {kind} of {city}"
        evidence = self.r.choice([
            f"{name.capitalize()} was built of {material} in {year} and burned down in {burnt}. {'It was rebuilt soon after.' if rebuilt else 'It was never rebuilt.'}",
            f"Built of {material} in {year}, {name} was destroyed by fire in {burnt}{' and later restored' if rebuilt else ' and given up'}."])
        true = [f"A fire destroyed {name} in {burnt}.", f"{name.capitalize()} was made of {material}.", f"{name.capitalize()} stood for {burnt - year} years before it burned.",
                f"{name.capitalize()} was {'put up again' if rebuilt else 'not put up again'} after the fire."]
        false = [f"A flood destroyed {name} in {burnt}.", f"{name.capitalize()} was made of {self.pick(MATERIALS, material)}.", f"{name.capitalize()} survived the fire unharmed.",
                 f"{name.capitalize()} was {'not put up again' if rebuilt else 'put up again'} after the fire.", f"{name.capitalize()} was built in {burnt}."]
        return evidence, true, false

    def pair(self):
        """Returns evidence, a claim, and whether the evidence supports the claim."""
        make = self.r.choice([self.birth, self.work, self.contest, self.family, self.size, self.order, self.share, self.nature, self.building])
        evidence, true, false = make()
        label = self.r.random() < 0.5
        claim = self.r.choice(true if label else false)
        if not label and self.r.random() < 0.15:
            # Evidence of something else: most claims of an answer are of this kind.
            claim = self.r.choice(make()[1])
        if self.r.random() < 0.3:
            evidence = f"{evidence} {self.r.choice(FILLERS)}" if self.r.random() < 0.5 else f"{self.r.choice(FILLERS)} {evidence}"
        return with_articles(evidence), with_articles(claim), label


def pairs(count, seed):
    """Returns `count` pairs of evidence and claim with their labels."""
    maker = Maker(seed)
    return [maker.pair() for _ in range(count)]


if __name__ == "__main__":
    for evidence, claim, label in pairs(20, 7):
        print(f"{'+' if label else '-'} {claim}\n    {evidence}")
