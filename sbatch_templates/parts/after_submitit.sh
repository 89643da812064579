code=$?
{% if watches_hang %}
kill $! 2>/dev/null
{% endif %}
"${supervise[@]}" end {{ run_dir }} --code=$code $term
exit $?
