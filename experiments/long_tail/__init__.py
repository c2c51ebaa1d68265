"""A GPT that is fine-tuned on samples whose lengths differ by a hundred times."""
