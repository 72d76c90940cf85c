"""Reading compiled code: ELF files, GPU machine code, and the audits made from both."""
