"""The one owner of the command line: llama-server's arguments, autolayers' own flags, and their
values.

    table    llama-server's arguments, one row each
    kinds    how a value is read and written, one object per kind
    own      autolayers' commands and own flags
    params   what a launch fixes (Params)
    policy   own flags as values (Policy)
    parse    words, environment and config files -> Arguments
    check    a whole command line, unknown flags refused
    write    Params -> words
"""
