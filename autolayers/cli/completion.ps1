# autolayers: completion for PowerShell, made by `autolayers completion powershell`
Register-ArgumentCompleter -Native -CommandName autolayers -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $before = $commandAst.CommandElements | Where-Object { $_.Extent.EndOffset -lt $cursorPosition }
    $words = @(@($before | ForEach-Object { $_.ToString() } | Select-Object -Skip 1) + $wordToComplete)
    autolayers __complete $words.Count @words 2>$null | Where-Object { $_ -notlike ':*' } | ForEach-Object {
        $word, $meaning = $_ -split "`t", 2
        if (-not $meaning) { $meaning = $word }
        [System.Management.Automation.CompletionResult]::new($word, $word, 'ParameterValue', $meaning)
    }
}
