//! Tables: other languages and scripts.

use super::check;

#[test]
fn languages() {
    check(
        "German",
        "Er mag z. B. Obst, d. h. Äpfel. Gut so.",
        &["Er mag z. B. Obst, d. h. Äpfel.", "Gut so."],
    );
    check(
        "German ordinals",
        "Am 3. Oktober im 19. Jahrhundert. Der 1. FC siegte.",
        &["Am 3. Oktober im 19. Jahrhundert.", "Der 1. FC siegte."],
    );
    check(
        "German titles",
        "Prof. Dr. Müller kam ca. 5 Min. später. „Nein.“ Sie ging.",
        &["Prof. Dr. Müller kam ca. 5 Min. später.", "„Nein.“", "Sie ging."],
    );
    check("German era", "44 v. Chr. Die Iden. Er starb.", &["44 v. Chr.", "Die Iden.", "Er starb."]);
    check("French", "M. Dupont et Mme. Roux. Il part.", &["M. Dupont et Mme. Roux.", "Il part."]);
    check(
        "French quotation",
        "« Viens ! » Elle vint. Qui ? Lui.",
        &["« Viens ! »", "Elle vint.", "Qui ?", "Lui."],
    );
    check(
        "Spanish",
        "El Sr. García llegó. ¿Qué pasó? ¡Nada!",
        &["El Sr. García llegó.", "¿Qué pasó?", "¡Nada!"],
    );
    check(
        "Spanish abbreviations",
        "Los EE. UU. y la pág. 3. Después no.",
        &["Los EE. UU. y la pág. 3.", "Después no."],
    );
    check(
        "Russian",
        "В 1998 г. Он родился. А. С. Пушкин писал.",
        &["В 1998 г.", "Он родился.", "А. С. Пушкин писал."],
    );
    check("Greek", "Ήρθε. Έφυγε.", &["Ήρθε.", "Έφυγε."]);
    check("Chinese", "他来了。你好吗？很好！", &["他来了。", "你好吗？", "很好！"]);
    check(
        "Chinese quotation",
        "他说：“你好。”然后走了。“再见。”",
        &["他说：“你好。”", "然后走了。", "“再见。”"],
    );
    check("Japanese", "彼は来た。「はい。」彼女は言った。", &["彼は来た。", "「はい。」", "彼女は言った。"]);
    check(
        "Japanese quotation goes on",
        "「何？」と彼は言った。終わり。",
        &["「何？」と彼は言った。", "終わり。"],
    );
    check("Korean", "나는 간다. 너는 온다! 3.5점이다.", &["나는 간다.", "너는 온다!", "3.5점이다."]);
    check("Arabic", "ما هذا؟ هذا كتاب. نعم!", &["ما هذا؟", "هذا كتاب.", "نعم!"]);
    check("Urdu", "یہ کتاب ہے۔ وہ قلم ہے۔", &["یہ کتاب ہے۔", "وہ قلم ہے۔"]);
    check("Hebrew", "הוא בא. היא הלכה. למה?", &["הוא בא.", "היא הלכה.", "למה?"]);
    check("Hindi", "यह है। वह था। क्या?", &["यह है।", "वह था।", "क्या?"]);
    check("Georgian", "ეს არის. ის იყო.", &["ეს არის.", "ის იყო."]);
    check("Armenian", "Սա է։ Նա էր։", &["Սա է։", "Նա էր։"]);
    check("short Thai", "ฉันไป เธอมา", &["ฉันไป เธอมา"]);
}

#[test]
fn thai_is_cut_at_spaces() {
    let phrase = "กรุงเทพมหานครเป็นเมืองหลวงและนครที่มีประชากรมากที่สุดของประเทศไทย";
    check("long Thai", &[phrase; 3].join(" "), &[phrase; 3]);
    check("a name within", &format!("{phrase} 2024 {phrase}"), &[&format!("{phrase} 2024 {phrase}")]);
}
