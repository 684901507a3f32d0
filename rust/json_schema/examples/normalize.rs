//! Reads a JSON Schema from standard input and writes its normal form.

use std::io::Read;

use json_schema_normal_form::{Options, normalize};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let normal = normalize(&serde_json::from_str(&text)?, &Options::default())?;
    println!("{}", serde_json::to_string_pretty(&normal.schema)?);
    for warning in &normal.warnings {
        eprintln!("{warning}");
    }
    Ok(())
}
