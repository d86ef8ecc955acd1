# autolayers: completion for fish, made by `autolayers completion fish`
function __autolayers
    set -l words (commandline -opc)
    set -l cur (commandline -ct)
    for line in (command autolayers __complete (count $words) $words[2..-1] "$cur" 2>/dev/null)
        switch $line
            case :gguf
                __fish_complete_path "$cur" | string match -r '^[^\t]*(?:\.gguf|/)(?=\t|$)'
            case :files
                __fish_complete_path "$cur"
            case :commands
                __fish_complete_command
            case '*'
                printf '%s\n' $line
        end
    end
end
complete -c autolayers -f -a '(__autolayers)'
