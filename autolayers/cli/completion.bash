# autolayers: completion for bash, made by `autolayers completion bash`
_autolayers() {
    local cur=${COMP_WORDS[COMP_CWORD]} line IFS=$'\n'
    [[ $cur == '=' ]] && cur=
    COMPREPLY=()
    while read -r line; do
        case $line in
            :gguf) compopt -o filenames 2>/dev/null
                   COMPREPLY+=($(compgen -f -X '!*.gguf' -- "$cur") $(compgen -d -- "$cur")) ;;
            :files) compopt -o filenames 2>/dev/null; COMPREPLY+=($(compgen -f -- "$cur")) ;;
            :commands) COMPREPLY+=($(compgen -c -- "$cur")) ;;
            *) COMPREPLY+=("${line%%$'\t'*}") ;;
        esac
    done < <(command autolayers __complete "$COMP_CWORD" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _autolayers autolayers
