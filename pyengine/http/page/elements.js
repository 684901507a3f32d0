"use strict";
// How elements are found and made, and the examples that the page begins with. The scripts of this
// folder are one script in the page, in the order that __init__.py names them.

const $ = (id) => document.getElementById(id);
const api = (path) => new URL(path, document.baseURI.replace(/[^/]*$/, ""));
const el = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
};

// Whether a key sends what is written: not while an input method composes a word.
const sends = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing;

const SCHEMA = `{
  "type": "object",
  "properties": {
    "city": { "type": "string" },
    "country": { "type": "string" }
  },
  "required": ["city", "country"],
  "additionalProperties": false
}`;
const TOOLS = `[{
  "type": "function",
  "function": {
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {
      "type": "object",
      "properties": { "city": { "type": "string" } },
      "required": ["city"]
    }
  }
}]`;
const TRIES = ["What is the capital of France?", "Name three fruits.", "What is 12 + 30?"];
