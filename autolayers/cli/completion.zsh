#compdef autolayers
# autolayers: completion for zsh, made by `autolayers completion zsh`
_autolayers() {
    local line tab=$'\t' kind
    local -a found
    for line in "${(@f)$(command autolayers __complete $((CURRENT - 1)) "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
        case $line in
            :*) kind=$line ;;
            *$tab*) found+=("${${line%%$tab*}//:/\\:}:${line#*$tab}") ;;
            ?*) found+=("${line//:/\\:}") ;;
        esac
    done
    (( $#found )) && _describe autolayers found
    [[ $kind == :files && $words[CURRENT] == --*=* ]] && compset -P '*='
    case $kind in
        :gguf) _files -g '*.gguf' ;;
        :files) _files ;;
        :commands) _command_names -e ;;
    esac
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _autolayers "$@"; else compdef _autolayers autolayers; fi
